"""What is learnt: the data set's name, the vocabulary of labels, the format of images and the network.

The server owns the problem and sends it with every task, so a job states it in one place only. Whether a network exists and
fits the images is checked where networks are known, by :func:`~grandrounds.models.registry.require_buildable`.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, Literal

from grandrounds.errors import ConfigurationError
from grandrounds.options import Min, Options, Range

Intensities = Literal["scaled", "standardised", "spread", "imagenet"]
"""Intensities of an image before the first layer: in [0, 1]; of mean 0 and deviation 1; spread over [-1, 1]; or with
ImageNet's mean and deviation taken off."""
Norm = Literal["batch", "group"]
DropoutAt = Literal["head", "layers"]
DROPOUT = Range(0, 1, open_maximum=True)


@dataclass(frozen=True)
class ModelSpec(Options):
    """What network to build, see :func:`~grandrounds.models.registry.build_model`."""

    prefix: ClassVar[str] = "model: "

    backbone: Annotated[str, "a name of the model registry"]
    classes: Annotated[int, "number of classes", Min(2)]
    channels: Annotated[int, "channels of the images", Min(1)] = 3
    norm: Annotated[Norm, "batch norm as published, or group norm in its place"] = "batch"
    dropout: Annotated[float | None, "probability; null is the backbone's own", DROPOUT] = None
    dropout_at: Annotated[DropoutAt, "before the last linear layer, or inside the layers (densenet121 only)"] = "head"
    weights: Annotated[str | None, "null (random), imagenet, or the path of a file"] = None
    intensities: Annotated[Intensities, "of an image before the first layer"] = "scaled"


@dataclass(frozen=True)
class Problem(Options):
    """A classification problem that all sites of a job share. A site may lack some of the classes."""

    prefix: ClassVar[str] = "problem."

    dataset: Annotated[str, "the name under which each site's grandrounds.json knows its data; never a path"]
    classes: Annotated[tuple[str, ...], "the vocabulary; a label's index in it is its number everywhere"]
    image_size: Annotated[int, "side of the square images, in pixels", Min(1)] = 64
    channels: Annotated[Literal[1, 3], "1 (grey) or 3 (colour)"] = 3
    backbone: Annotated[str, "a name of the model registry"] = "compact"
    norm: Annotated[Norm, "normalisation layers"] = "batch"
    dropout: Annotated[float | None, "rate; null is the backbone's own", DROPOUT] = None
    dropout_at: Annotated[DropoutAt, "before the last linear layer, or inside the layers (densenet121 only)"] = "head"
    weights: Annotated[str | None, "null, imagenet or a file on the server; only the server reads it"] = None
    intensities: Annotated[Intensities, "of an image before the first layer"] = "scaled"

    def check(self) -> None:
        """Check the vocabulary."""
        if len(self.classes) < 2 or len(set(self.classes)) != len(self.classes):
            raise ConfigurationError(f"problem.classes must be at least two different names, got {list(self.classes)}")

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Problem:
        """Read a job's ``problem`` entry.

        Raises:
            ConfigurationError: for an unknown or missing key, or a value that does not fit.
        """
        known = [field.name for field in fields(cls)]
        for key in content:
            if key not in known:
                nearest = difflib.get_close_matches(key, known, n=1)
                hint = f"; did you mean {nearest[0]}?" if nearest else ""
                raise ConfigurationError(f"problem has no option {key!r}{hint} (options: {', '.join(known)})")
        missing = [key for key in ("dataset", "classes") if not content.get(key)]
        if missing:
            raise ConfigurationError(f"problem.{missing[0]} is missing")
        classes = content["classes"]
        return cls(**{**content, "classes": tuple(classes) if isinstance(classes, list) else classes})

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as they travel and as they are hashed."""
        return {**vars(self), "classes": list(self.classes)}

    def model_spec(self, pretrained: bool) -> ModelSpec:
        """The model to build; a site asks without pretrained weights, because the server sends them."""
        return ModelSpec(
            backbone=self.backbone,
            classes=len(self.classes),
            channels=self.channels,
            norm=self.norm,
            dropout=self.dropout,
            dropout_at=self.dropout_at,
            weights=self.weights if pretrained else None,
            intensities=self.intensities,
        )
