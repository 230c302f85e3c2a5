"""What is learnt: the data set's name, the vocabulary of labels, the images' format and the model.

The server owns the problem and sends it with every task, so a job states it in one place only.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from grandrounds.errors import ConfigurationError
from grandrounds.models.intensities import Intensities
from grandrounds.models.registry import ModelSpec, minimum_image_size


@dataclass(frozen=True)
class Problem:
    """A classification problem that all sites of a job share.

    Attributes:
        dataset: the name under which each site's ``grandrounds.json`` knows its data; never a path.
        classes: the vocabulary; a label's index in it is its number everywhere. A site may lack classes.
        image_size: side of the square images, in pixels.
        channels: 1 (grey) or 3 (colour).
        backbone: a name of the model registry.
        norm: normalisation layers, ``batch`` or ``group``.
        dropout: rate, or None for the backbone's own.
        dropout_at: ``head`` or ``layers``.
        weights: None, ``imagenet`` or a file on the server; only the server reads it.
        intensities: of an image before the first layer: ``scaled`` (to [0, 1]), ``standardised`` (mean 0, deviation 1),
            ``spread`` (over [-1, 1]) or ``imagenet`` (ImageNet's mean and deviation taken off).
    """

    dataset: str
    classes: tuple[str, ...]
    image_size: int = 64
    channels: int = 3
    backbone: str = "compact"
    norm: Literal["batch", "group"] = "batch"
    dropout: float | None = None
    dropout_at: Literal["head", "layers"] = "head"
    weights: str | None = None
    intensities: Intensities = "scaled"

    def __post_init__(self) -> None:
        """Check what does not need any data.

        Raises:
            ConfigurationError: naming the field, what was expected and what came.
        """
        if len(self.classes) < 2 or len(set(self.classes)) != len(self.classes):
            raise ConfigurationError(f"problem.classes must be at least two different names, got {list(self.classes)}")
        if self.channels not in (1, 3):
            raise ConfigurationError(f"problem.channels must be 1 or 3, got {self.channels}")
        least = minimum_image_size(self.backbone)
        if not isinstance(self.image_size, int) or self.image_size < least:
            raise ConfigurationError(
                f"problem.image_size must be an integer of at least {least} for backbone {self.backbone}, "
                f"got {self.image_size}"
            )

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
        if not isinstance(classes, list | tuple) or not all(isinstance(name, str) for name in classes):
            raise ConfigurationError(f"problem.classes must be a list of names, got {classes!r}")
        return cls(**{**content, "classes": tuple(classes)})

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
