"""What a partition is to be: all choices in one place, completed with their defaults and checked before any work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, Self, cast, get_args

from grandrounds.data.dataset_options import (
    MALIGNANCY,
    ClientPartition,
    Dataset,
    DatasetOptions,
    GroupBy,
    require_own_choices,
)
from grandrounds.data.fedperl_clients import CLIENTS, LABELLED_SITES
from grandrounds.data.inbreast import BiradsThree
from grandrounds.data.lesion_collection import Variant
from grandrounds.data.mammo_collection import MAMMOGRAPHY
from grandrounds.data.mammo_records import Normals
from grandrounds.data.mutual_options import MutualOptions, require_mutual
from grandrounds.data.rsna_labels import Multi
from grandrounds.data.scenarios import FewLabelsUse, Scenario
from grandrounds.errors import ConfigurationError
from grandrounds.options import require_fractions, require_least, require_positive

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
class Recipe:
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
        require_least(self, 1, "sites")
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
        require_least(self, 0, "server_images")
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
