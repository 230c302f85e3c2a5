"""What can be chosen of a partition for mutual learning: label noise, and images that all sites have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from grandrounds.data.label_noise import LabelNoise, NoiseKind
from grandrounds.errors import ConfigurationError
from grandrounds.options import require_least, require_words

PublicSource = Literal["share", "folder", "matek19", "mll23", "pbc", "bloodmnist"]

PUBLIC_SHARE = 0.5
DEFAULTS: Mapping[str, Any] = {
    "noise": "none",
    "noise_rate": 0.0,
    "noise_eligible": 1.0,
    "public": "share",
    "public_share": PUBLIC_SHARE,
    "public_root": None,
    "public_images": None,
    "private_images": None,
    "public_size": None,
}


@dataclass(frozen=True)
class MutualOptions:
    """The choices of the scheme ``mdhfl``; the fields are the arguments of ``make_partition`` of the same names.

    Attributes:
        noise: kind of the label noise, drawn for training and validation images.
        noise_rate: probability that the label of an eligible image is another.
        noise_eligible: fraction of the images whose label can be wrong at all.
        public: where the public set comes from: a ``share`` of the divided data set itself, without labels; a ``folder`` (or
            archive) of any images; or a data set by name, of which the images with a class are taken.
        public_share: which share, for ``share``.
        public_root: the place of the public images, for all but ``share``.
        public_images: how many are drawn of them; None is all.
        private_images: how many images are divided between test set and sites, drawn by class; None is all.
        public_size: height and width in pixels at which the hashes of the decoded public images are written down; None
            leaves the comparison of decoders to the sites.
    """

    noise: NoiseKind
    noise_rate: float
    noise_eligible: float
    public: PublicSource
    public_share: float
    public_root: Path | None
    public_images: int | None
    private_images: int | None
    public_size: int | None

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Self:
        """Complete and check choices; None stands for a default.

        Raises:
            ConfigurationError: if a word is unknown, a number out of range, or two choices do not fit together.
        """
        given = {name: arguments[name] for name in DEFAULTS if arguments[name] is not None}
        options = cls(**{**DEFAULTS, **given})
        options._check_public(given)
        require_least(options, 1, "public_images", "private_images", "public_size")
        try:
            LabelNoise(options.noise, options.noise_rate, options.noise_eligible)
        except ValueError as error:
            raise ConfigurationError(str(error)) from error
        return options

    @property
    def label_noise(self) -> LabelNoise:
        """How labels go wrong."""
        return LabelNoise(self.noise, self.noise_rate, self.noise_eligible)

    def description(self) -> dict[str, Any]:
        """What ``partition.json`` says of the choices: those that have an effect on this partition, and no path."""
        content: dict[str, Any] = {"noise": self.noise, "public": self.public}
        if self.noise != "none":
            content |= {"noise_rate": self.noise_rate, "noise_eligible": self.noise_eligible}
        if self.public == "share":
            content["public_share"] = self.public_share
        for name in ("public_images", "private_images", "public_size"):
            if getattr(self, name) is not None:
                content[name] = getattr(self, name)
        return content

    def _check_public(self, given: Mapping[str, Any]) -> None:
        require_words(self, "public")
        if self.public == "share" and self.public_root is not None:
            raise ConfigurationError("public_root is for public images of another place; set public, or leave it out")
        if self.public != "share" and self.public_root is None:
            raise ConfigurationError(f"public {self.public} needs public_root, where its images are")
        if self.public != "share" and "public_share" in given:
            raise ConfigurationError(f"public_share is for public share; leave it out for {self.public}")
        if not 0 < self.public_share < 1:
            raise ConfigurationError(f"public_share must be above 0 and below 1, got {self.public_share}")


def require_mutual(scheme: str, arguments: Mapping[str, Any]) -> None:
    """Refuse a choice that would have no effect on another scheme, so that nobody believes it had.

    Raises:
        ConfigurationError: naming the choice.
    """
    for name in DEFAULTS:
        if arguments[name] is not None and scheme != "mdhfl":
            raise ConfigurationError(f"{name} is for the scheme mdhfl; leave it out for {scheme}")
