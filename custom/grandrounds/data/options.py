"""Options that all partitions have, and those of scheme ``mdhfl``; each family of data sets adds its own.

This module imports neither torch nor a reader, so that the help of the command line appears at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, get_args

from grandrounds.checks import did_you_mean
from grandrounds.data.own_schemes import own_schemes
from grandrounds.errors import ConfigurationError
from grandrounds.options import ABOVE_ZERO, FRACTION, Min, Options, Range
from grandrounds.protocol.names import SyntheticDevice

Scenario = Literal["standard", "server_labels", "few_labels"]
FewLabelsUse = Literal["pool", "labelled"]
NoiseKind = Literal["none", "symmetric", "pair"]
Windows = tuple[tuple[float, float], ...]

DIVISION = "division by source (sites), by class (dirichlet), at random (iid), or one external test site (external)"
SCHEME_DEFAULTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "external": {"sites": 1},
        "fedperl": {"sites": 10},
        "mdhfl": {"sites": 4, "labelled": 1.0, "validation": 0.1, "test": 0.2},
    }
)
"""Defaults that a scheme sets for every data set."""

SERVER_TRAINING = 0.8
"""Share of the server's images for training where it alone has labels: the paper's 1000 images become 800 and 200."""


@dataclass(frozen=True, kw_only=True)
class PartitionOptions(Options):
    """Options of every data set; None is a default that depends on the scheme, see :meth:`default`."""

    defaults: ClassVar[Mapping[str, Any]] = MappingProxyType(
        {"sites": 10, "labelled": 0.25, "validation": 0.125, "test": 0.375}
    )

    schemes: ClassVar[tuple[str, ...]] = ("sites", "dirichlet", "iid", "external")
    scheme: Annotated[str, DIVISION] = "sites"
    sites: Annotated[int | None, "number of sites", Min(1)] = None
    alpha: Annotated[float, "Dirichlet concentration; the smaller, the more sites differ", ABOVE_ZERO] = 0.5
    labelled: Annotated[float | None, "share of the training images that keep their label", FRACTION] = None
    labelled_images: Annotated[
        int | None, "number of labelled training images of each site, in place of a share; null for the share", Min(1)
    ] = None
    devices: Annotated[
        int,
        "synthetic devices that the sites' images are retaken with, in turn; 0 for none",
        Range(0, len(get_args(SyntheticDevice))),
    ] = 0
    validation: Annotated[float | None, "share of each site's images for validation", FRACTION] = None
    test: Annotated[float | None, "share of each site's images for testing (mdhfl: of all images)", FRACTION] = None
    seed: Annotated[int, "seed of all random choices"] = 1
    server_images: Annotated[int, "images of the server, for validation, drawn before the sites' images", Min(0)] = 0
    server_training: Annotated[
        float | None,
        "share of the server's images for training; 0.8 for scenario server_labels, else 0",
        Range(0, 1, open_maximum=True),
    ] = None
    scenario: Annotated[Scenario, "labels at every site, at the server only, or at few sites"] = "standard"
    labelled_sites: Annotated[tuple[str, ...], "for few_labels: sites with labels; fedperl has two by default"] = ()
    few_labels_use: Annotated[FewLabelsUse, "for few_labels: all labels of these sites, or the labelled share"] = "pool"

    @classmethod
    def default(cls, name: str, scheme: str) -> Any:
        """The default value of an option under a scheme.

        Example:
            >>> PartitionOptions.default("sites", "iid"), PartitionOptions.default("sites", "external")
            (10, 1)
        """
        return SCHEME_DEFAULTS.get(scheme, {}).get(name, cls.defaults[name])

    @property
    def site_count(self) -> int:
        """The number of sites."""
        return int(self._value("sites"))

    @property
    def shares(self) -> dict[str, float]:
        """How each site divides its images: ``labelled``, ``validation`` and ``test``."""
        return {name: self._value(name) for name in ("labelled", "validation", "test")}

    @property
    def server_share(self) -> float:
        """Share of the server's images for training."""
        if self.server_training is None:
            return SERVER_TRAINING if self.scenario == "server_labels" else 0.0
        return self.server_training

    @property
    def shares_patients(self) -> bool:
        """Whether a patient's images may be at several sites."""
        return False

    @property
    def scales_counts(self) -> bool:
        """Whether scheme ``fedperl`` takes fewer images in proportion where a data set has too few."""
        return False

    @property
    def has_shares(self) -> bool:
        """Whether the sites' splits are drawn by :attr:`shares`; otherwise the scheme sets them."""
        return self.scheme not in ("fedperl", "external")

    def check(self) -> None:
        """Refuse options that contradict each other or the scheme."""
        if self.scheme not in self.schemes and self.scheme not in own_schemes():
            *others, last = (*self.schemes, *own_schemes())
            hint = did_you_mean(self.scheme, self.schemes)
            raise ConfigurationError(f"scheme must be {', '.join(others)} or {last}, got {self.scheme!r}{hint}")
        needed = SCHEME_DEFAULTS.get(self.scheme, {}).get("sites")
        if not self.has_shares and self.site_count != needed:
            raise ConfigurationError(
                f"scheme {self.scheme} has {needed} site{'' if needed == 1 else 's'}, got {self.site_count}; set sites to "
                f"{needed}"
            )
        shares = self.shares
        if not shares["validation"] + shares["test"] < 1:
            raise ConfigurationError(
                f"validation and test must leave something for training, got {shares['validation']} + {shares['test']}"
            )
        if self.labelled_images is not None and (self.labelled is not None or not self.has_shares):
            raise ConfigurationError(
                "labelled_images replaces the share labelled, and schemes fedperl and external set their own labels; leave "
                "one of them out"
            )
        if self.scenario != "few_labels" and (self.labelled_sites or self.few_labels_use != "pool"):
            raise ConfigurationError(f"labelled_sites and few_labels_use need scenario few_labels, got {self.scenario}")
        self._check_server()

    def _check_server(self) -> None:
        if self.server_images and not self.has_shares:
            raise ConfigurationError(f"scheme {self.scheme} defines the server's images; leave server_images out")
        if self.scheme == "external" and self.scenario != "standard":
            raise ConfigurationError(f"scheme external has no training images for scenario {self.scenario}")
        if self.server_share and not (self.scheme == "fedperl" or self.server_images):
            raise ConfigurationError(
                "the server has no images to train on; set server_images (or leave server_training out)"
                if self.scenario != "server_labels"
                else "scenario server_labels needs images at the server; set server_images"
            )
        if self.scenario == "server_labels" and not self.server_share:
            raise ConfigurationError("scenario server_labels needs a server that trains; set server_training above 0")

    def _value(self, name: str) -> Any:
        value = getattr(self, name)
        return self.default(name, self.scheme) if value is None else value


@dataclass(frozen=True, kw_only=True)
class MalignancyOptions(PartitionOptions):
    """Options of benign and malignant images: cancer is rare in them, so splits are drawn class by class."""

    defaults: ClassVar[Mapping[str, Any]] = MappingProxyType(
        {"sites": 4, "labelled": 1.0, "validation": 0.1, "test": 0.2}
    )
    scheme: Annotated[str, DIVISION] = "sites"


MUTUAL_DIVISION = f"{DIVISION}, or sites of equal size with one test set and a public set (mdhfl)"


@dataclass(frozen=True, kw_only=True)
class MutualOptions(PartitionOptions):
    """Options of data sets that scheme ``mdhfl`` can divide."""

    schemes: ClassVar[tuple[str, ...]] = ("sites", "dirichlet", "iid", "mdhfl", "external")
    noise: Annotated[NoiseKind, "for mdhfl: wrong labels become any other class, or the next"] = "none"
    noise_rate: Annotated[float, "for mdhfl: probability that the label of an eligible image is wrong", FRACTION] = 0.0
    noise_eligible: Annotated[float, "for mdhfl: share of the images whose label can be wrong", FRACTION] = 1.0
    public: Annotated[str, "for mdhfl: public set: share of the data set, folder, or the name of a data set"] = "share"
    public_share: Annotated[float | None, "for mdhfl: the share; 0.5", Range(0, 1, True, True)] = None
    public_root: Annotated[Path | None, "for mdhfl: folder or archive of public images that are no share"] = None
    public_images: Annotated[int | None, "for mdhfl: number of public images to draw; all by default", Min(1)] = None
    private_images: Annotated[int | None, "for mdhfl: number of private images to draw; all by default", Min(1)] = None
    public_size: Annotated[int | None, "for mdhfl: pixels at which decoded public images are hashed too", Min(1)] = None

    @property
    def public_fraction(self) -> float:
        """Share of the data set that becomes the public set."""
        return 0.5 if self.public_share is None else self.public_share

    def check(self) -> None:
        """Refuse options that contradict each other or the scheme."""
        super().check()
        if self.scheme != "mdhfl":
            self._require_unused()
            return
        if self.shares["labelled"] != 1 or self.labelled_images is not None:
            raise ConfigurationError("scheme mdhfl trains on all labels; leave labelled and labelled_images out")
        if self.scenario != "standard" or self.server_images:
            raise ConfigurationError("scheme mdhfl has no scenario and no images at the server; leave them out")
        if self.noise == "none" and self.noise_rate > 0:
            raise ConfigurationError(f"noise none has no noise_rate, got {self.noise_rate}; choose symmetric or pair")
        if (self.public == "share") != (self.public_root is None):
            raise ConfigurationError(
                f"public {self.public} needs public_root, the folder or archive of its images"
                if self.public_root is None
                else "public_root is for public images outside the data set; also set public"
            )
        if self.public != "share" and self.public_share is not None:
            raise ConfigurationError(f"public_share is for public share, got public {self.public}; leave it out")

    def _require_unused(self) -> None:
        for field in fields(MutualOptions):
            of_mutual = field.name not in PartitionOptions.__dataclass_fields__
            if of_mutual and getattr(self, field.name) != field.default:
                raise ConfigurationError(f"{field.name} is for the scheme mdhfl, got scheme {self.scheme}")
