"""What ``make_partition`` can be told beside what to divide and where to write.

What a partition is to be: all choices in one place, completed with their defaults and checked before any work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Self, TypedDict, cast, get_args

from grandrounds.data.datasets.mammography.collection import MAMMOGRAPHY
from grandrounds.data.datasets.mammography.inbreast import BiradsThree
from grandrounds.data.datasets.mammography.records import Normals
from grandrounds.data.datasets.registry import (
    MALIGNANCY,
    ClientPartition,
    Dataset,
    DatasetOptions,
    GroupBy,
    require_own_choices,
)
from grandrounds.data.datasets.rsna_ich import Multi
from grandrounds.data.datasets.skin.joint import Variant
from grandrounds.data.partition.fedperl import CLIENTS, LABELLED_SITES, FewLabelsUse, Scenario
from grandrounds.data.partition.mutual import MutualOptions, require_mutual
from grandrounds.errors import ConfigurationError
from grandrounds.options import require_fractions, require_min, require_positive


class Choices(TypedDict, total=False):
    """Choices of a partition; what is left out, or None, is a default.

    Attributes:
        labelled: share of each site's training images that keep their label; 0.25, for ``mdhfl`` all.
        validation: share of each site's images for validation; 0.125, for ``mdhfl`` 0.1.
        test: share of each site's images for testing, the rest is for training; 0.375. For ``mdhfl`` the share of all images
            that are the test set of every site; 0.2. For benign and malignant images all labels, 0.1 and 0.2.
        alpha: concentration for ``dirichlet`` and ``mdhfl``: the smaller, the more the sites differ; 0.5.
        seed: of all random choices; 1.
        variant: of ``lesions``: ``clean`` (default) without the images of HAM10000 in ISIC 2019, patients and lesions kept
            together; ``paper`` with them, image by image. Under ``clean`` the counts of ``fedperl`` are scaled to what
            remains; the description says which (``scaled``).
        server_images: images of the party ``server``, in split ``val``, drawn before the sites are divided. ``fedperl``
            has its own 1000.
        server_training: share of the server's images in split ``train``, stratified by class; None is 0.8 under
            ``server_labels`` and else 0.
        scenario: who has labels, see :func:`~grandrounds.data.partition.fedperl.relabel`.
        labelled_sites: for ``few_labels``: who; None is ``site-2`` and ``site-10`` for ``fedperl``.
        few_labels_use: for ``few_labels``: ``pool`` (default) or ``labelled``.
        group_by: of ``ham10000`` and ``isic2018``: ``lesion`` (default) keeps the images of one together; ``image`` divides
            image by image, as the FedIRM paper does, so that one lesion may be in training and test.
        multi: of ``rsna_ich``: slices with several subtypes are left out (``drop``, default) or count as of the ``first``.
        slices: of ``rsna_ich``: how many are drawn, patient by patient; None is 25,000.
        patients: of ``rsna_ich``: where the patients are written down, see
            :func:`~grandrounds.data.datasets.rsna_ich.find_patients`; None is ``patients.csv`` in ``root``.
        client_partition: of ``rsna_ich`` under ``iid``: whether a ``patient`` (default) is at one site, or each ``slice``
            goes to any, as in the FedIRM paper. No patient is in two splits, whatever the site.
        windows: of ``rsna_ich`` and of DICOM files with a ``manifest``: centre and width in Hounsfield units of each
            channel; None is brain, subdural and soft tissue for ``rsna_ich``, and else what the files say.
        normals: of mammograms: images without a finding count as ``benign`` (default), are a ``class`` of their own, or are
            left out (``drop``).
        birads_3: of ``inbreast``: what an assessment of 3 counts as, ``malignant`` (default), ``benign``, or nothing
            (``drop``).
        published_test: of ``cbis_ddsm``: its published test set is the test set; ``validation`` is a share of the rest.
        simulated_vendors: of ``mini_mias``: a folder for its films as three imaginary vendors show them, which are its
            sources then.
        preprocess: of a ``manifest``: ``mammogram`` crops, turns and pads.
        noise: of ``mdhfl``, as what follows; see :class:`~grandrounds.data.partition.mutual.MutualOptions`.
        noise_rate: of the label noise.
        noise_eligible: whose labels can be wrong.
        public: where the public set comes from.
        public_share: how much of the data set it is.
        public_root: where its images are.
        public_images: how many are drawn.
        private_images: how many images are divided.
        public_size: at which the decoded images are hashed.
    """

    labelled: float | None
    validation: float | None
    test: float | None
    alpha: float
    seed: int
    variant: str | None
    server_images: int
    server_training: float | None
    scenario: str
    labelled_sites: Sequence[str] | None
    few_labels_use: str | None
    group_by: str | None
    multi: str | None
    slices: int | None
    patients: Path | str | None
    client_partition: str | None
    windows: Sequence[Sequence[float]] | None
    normals: str | None
    birads_3: str | None
    published_test: bool | None
    simulated_vendors: Path | str | None
    preprocess: str | None
    noise: str | None
    noise_rate: float | None
    noise_eligible: float | None
    public: str | None
    public_share: float | None
    public_root: Path | str | None
    public_images: int | None
    private_images: int | None
    public_size: int | None


DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        **dict.fromkeys(Choices.__annotations__),
        "alpha": 0.5,
        "seed": 1,
        "server_images": 0,
        "scenario": "standard",
    }
)


def completed(choices: Choices) -> dict[str, Any]:
    """The choices with their defaults; None is a default that depends on others.

    Raises:
        TypeError: if there is no such choice.

    Example:
        >>> completed({"seed": 7})["seed"], completed({})["seed"], completed({})["windows"]
        (7, 1, None)
    """
    for name in choices:
        if name not in DEFAULTS:
            raise TypeError(f"there is no choice {name!r} of a partition; choices are {', '.join(DEFAULTS)}")
    return {**DEFAULTS, **choices}


Scheme = Literal["sites", "dirichlet", "iid", "fedperl", "mdhfl", "unseen"]

SITES: Mapping[str, int] = MappingProxyType({"mdhfl": 4, "unseen": 1})
SITES_OF_DATASET: Mapping[str, int] = MappingProxyType({"ham10000_malignancy": 4, **dict.fromkeys(MAMMOGRAPHY, 3)})
"""Of data sets with few sources, under all schemes that do not say a number."""

OTHER_SITES = 10
SHARES: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {"mdhfl": MappingProxyType({"labelled": 1.0, "validation": 0.1, "test": 0.2})}
)
MALIGNANCY_SHARES: Mapping[str, float] = MappingProxyType({"labelled": 1.0, "validation": 0.1, "test": 0.2})
OTHER_SHARES: Mapping[str, float] = MappingProxyType({"labelled": 0.25, "validation": 0.125, "test": 0.375})
CELLS = ("matek19", "mll23", "pbc", "bloodmnist", "cifar10")
SCHEMES: Mapping[str, Scheme] = MappingProxyType(
    {"isic2018": "iid", "isic2020": "unseen", "rsna_ich": "iid", **dict.fromkeys(CELLS, "mdhfl")}
)
"""The schemes of data sets that have one source, or no training images, unless another is asked for."""

SERVER_TRAINING = 0.8
"""Share of the server's images for training where it alone has labels: the paper's 1000 images become 800 and 200."""


@dataclass(frozen=True)
class PartitionConfig:
    """A partition's choices; the fields are the arguments of ``make_partition`` of the same names.

    ``options`` holds those of the data set alone, ``mutual`` those of the scheme ``mdhfl``.
    """

    dataset: Dataset
    options: DatasetOptions
    scheme: Scheme
    sites: int
    labelled: float
    validation: float
    test: float
    alpha: float
    seed: int
    client_partition: ClientPartition
    server_images: int
    server_training: float
    scenario: Scenario
    labelled_sites: tuple[str, ...]
    few_labels_use: FewLabelsUse
    mutual: MutualOptions

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Self:
        """Complete and check the arguments of ``make_partition``; None stands for a default that depends on others.

        Raises:
            ConfigurationError: if a word is unknown, a number out of range, or two choices do not fit together.
        """
        _check_words(arguments)
        _check_meaning(arguments)
        scheme = arguments["scheme"] or SCHEMES.get(arguments["dataset"], "sites")
        require_mutual(scheme, arguments)
        server_labels = arguments["scenario"] == "server_labels"
        dataset = arguments["dataset"]
        shares = SHARES.get(scheme, MALIGNANCY_SHARES if dataset in MALIGNANCY else OTHER_SHARES)
        completed = {
            "scheme": scheme,
            "options": DatasetOptions.of(arguments["dataset"], arguments),
            "mutual": MutualOptions.of(arguments),
            **{name: _or_default(arguments[name], share) for name, share in shares.items()},
            "sites": _or_default(arguments["sites"], SITES.get(scheme, SITES_OF_DATASET.get(dataset, OTHER_SITES))),
            "client_partition": _or_default(arguments["client_partition"], "patient"),
            "server_training": _or_default(arguments["server_training"], SERVER_TRAINING if server_labels else 0.0),
            "few_labels_use": _or_default(arguments["few_labels_use"], "pool"),
        }
        if completed["options"].published_test:
            completed["test"] = 0.0
        named = arguments["labelled_sites"]
        few_of_fedperl = arguments["scenario"] == "few_labels" and scheme == "fedperl"
        completed["labelled_sites"] = tuple(_or_default(named, LABELLED_SITES if few_of_fedperl else ()))
        own = {name: value for name, value in arguments.items() if name in cls.__dataclass_fields__}
        recipe = cls(**{**own, **completed})
        recipe._check_numbers()
        recipe._check_mutual()
        recipe._check_server()
        return recipe

    @property
    def shares(self) -> dict[str, float]:
        """How each site divides its images."""
        return {"labelled": self.labelled, "validation": self.validation, "test": self.test}

    @property
    def divides_sites(self) -> bool:
        """Whether the sites' splits are drawn here; otherwise they come with the scheme."""
        return self.scheme not in ("fedperl", "unseen")

    def description(self) -> dict[str, Any]:
        """What ``partition.json`` says of the choices: those that have an effect on this partition."""
        content: dict[str, Any] = {"dataset": self.dataset, "scheme": self.scheme, "seed": self.seed}
        if self.scheme in ("dirichlet", "mdhfl"):
            content["alpha"] = self.alpha
        if self.client_partition != "patient":
            content["client_partition"] = self.client_partition
        if self.divides_sites:
            content |= self.shares
        if self.server_images:
            content["server_images"] = self.server_images
        if self.server_training:
            content["server_training"] = self.server_training
        if self.scenario != "standard":
            content["scenario"] = self.scenario
        if self.scenario == "few_labels":
            content |= {"labelled_sites": list(self.labelled_sites), "few_labels_use": self.few_labels_use}
        return content

    def _check_mutual(self) -> None:
        if self.scheme != "mdhfl":
            return
        if self.labelled != 1:
            raise ConfigurationError(f"scheme mdhfl trains on all labels, got labelled {self.labelled}; leave it out")
        if self.scenario != "standard" or self.server_images:
            raise ConfigurationError("scheme mdhfl has no scenario and no images at the server; leave them out")

    def _check_numbers(self) -> None:
        if self.client_partition == "slice" and self.scheme != "iid":
            raise ConfigurationError(f"client_partition slice is for the scheme iid, got {self.scheme}")
        require_min(self, 1, "sites")
        needed = {"fedperl": len(CLIENTS), "unseen": 1}.get(self.scheme, self.sites)
        if self.sites != needed:
            raise ConfigurationError(
                f"scheme {self.scheme} has {needed} sites, got {self.sites}; set sites to {needed}"
                if needed > 1
                else f"scheme {self.scheme} has one site, got {self.sites}; set sites to 1"
            )
        require_positive(self, "alpha")
        require_fractions(self, *self.shares)
        if not self.validation + self.test < 1:
            raise ConfigurationError(
                f"validation and test must leave something for training, got {self.validation} + {self.test}"
            )

    def _check_server(self) -> None:
        require_min(self, 0, "server_images")
        if self.server_images and not self.divides_sites:
            raise ConfigurationError(f"scheme {self.scheme} says what the server has; leave server_images out")
        if not 0 <= self.server_training < 1:
            raise ConfigurationError(
                f"server_training must be at least 0 and below 1 (the server needs images for validation), got "
                f"{self.server_training}"
            )
        if self.scheme == "unseen" and self.scenario != "standard":
            raise ConfigurationError(f"scheme unseen has no training images, scenario {self.scenario} is about them")
        has_images = self.scheme == "fedperl" or self.server_images > 0
        if self.server_training and not has_images:
            raise ConfigurationError(
                "the server has no images to train on; set server_images (or leave server_training out)"
                if self.scenario != "server_labels"
                else "scenario server_labels needs images at the server; set server_images"
            )
        if self.scenario == "server_labels" and not self.server_training:
            raise ConfigurationError("scenario server_labels needs a server that trains; set server_training above 0")


def _or_default(value: Any, default: Any) -> Any:
    return default if value is None else value


def _check_words(arguments: Mapping[str, Any]) -> None:
    words = {
        "dataset": Dataset,
        "scheme": Scheme,
        "variant": Variant,
        "group_by": GroupBy,
        "multi": Multi,
        "normals": Normals,
        "birads_3": BiradsThree,
        "client_partition": ClientPartition,
        "scenario": Scenario,
        "few_labels_use": FewLabelsUse,
    }
    for field, known in words.items():
        given = arguments[field]
        left_out = given is None and field not in ("dataset", "scenario")
        if given not in get_args(known) and not left_out:
            raise ConfigurationError(f"{field} must be one of {', '.join(get_args(known))}, got {given!r}")


def _check_meaning(arguments: Mapping[str, Any]) -> None:
    """Refuse what would have no effect, so that nobody believes it had."""
    require_own_choices(arguments["dataset"], arguments)
    scenario = cast("str", arguments["scenario"])
    for field in ("labelled_sites", "few_labels_use"):
        if arguments[field] is not None and scenario != "few_labels":
            raise ConfigurationError(f"{field} is for the scenario few_labels; leave it out for {scenario}")
