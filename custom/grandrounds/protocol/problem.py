"""What is learnt: the data set's name, the vocabulary of labels, the format of images and the network.

The server owns the problem and sends it with every task, so a job states it in one place only. Whether a network exists and
fits the images is checked where networks are known, by :func:`~grandrounds.models.registry.require_buildable`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal

from grandrounds.checks import did_you_mean
from grandrounds.errors import ConfigurationError
from grandrounds.options import BASIC, Min, Options, Range, former_names, with_current_names
from grandrounds.protocol.task import Task
from grandrounds.protocol.tasks import SINGLE, task_named

FixedIntensities = Literal["scaled", "standardised", "spread", "imagenet", "efficientnet_lite"]
"""Intensities of an image before the first layer: in [0, 1]; of mean 0 and deviation 1; spread over [-1, 1]; with ImageNet's
mean and deviation taken off; or those that EfficientNet-Lite was trained with."""
Intensities = Literal["auto", "scaled", "standardised", "spread", "imagenet", "efficientnet_lite"]
"""``auto`` is what the weights were trained with, and ``scaled`` without weights."""
Preprocessing = Literal["exact", "draft", "proportion"]
"""How an image of any size becomes a square."""
PREPROCESSING_MEANING = (
    "from an image to the square: both sides resized (exact), the same with large JPEGs decoded at a reduced size (draft), "
    "or the aspect kept and black added (proportion)"
)
Norm = Literal["batch", "group", "frozen", "site"]
SITE_NORM: Norm = "site"
FROZEN_NORMS: tuple[Norm, ...] = ("frozen", SITE_NORM)
"""Batch norms whose statistics do not change in training and are in no message."""
MIN_STATISTICS_IMAGES = 16
"""How many training images a site must have for statistics of its own."""
IMAGENET = "imagenet"
WEIGHTS_NAME = re.compile(r"[A-Za-z0-9_-]+")
LINEAR, DEPTHS = "linear", "depths"
TRAIN_ALL, TRAIN_HEAD, FROM = "all", "head", "from:"
DropoutAt = Literal["head", "layers"]
DROPOUT = Range(0, 1, open_maximum=True)
NORM_MEANING = (
    "batch norm, group norm in its place, or batch norm frozen at the statistics of the weights (frozen) or of the site's "
    "images (site)"
)
INTENSITIES_MEANING = "of an image before the first layer; auto is what the weights were trained with"
HEAD_MEANING = (
    "linear; mlp:<widths> for hidden layers with ReLU before the last one, such as mlp:256 or mlp:256,64; or depths, linear "
    "on features of several layers"
)
TRAINABLE_MEANING = "all layers, the head, or from:<block> on; sites load the frozen layers themselves"


@dataclass(frozen=True)
class ModelSpec(Options):
    """What network to build, see :func:`~grandrounds.models.registry.build_model`."""

    prefix: ClassVar[str] = "model: "

    backbone: Annotated[str, "a name of the model registry"]
    classes: Annotated[int, "number of classes", Min(2)]
    channels: Annotated[int, "channels of the images", Min(1)] = 3
    norm: Annotated[Norm, NORM_MEANING] = "batch"
    dropout: Annotated[float | None, "probability; null is the backbone's own", DROPOUT] = None
    dropout_at: Annotated[DropoutAt, "before the last linear layer, or inside the layers (densenet121 only)"] = "head"
    head: Annotated[str, HEAD_MEANING] = LINEAR
    weights: Annotated[
        str | None, "null (random), imagenet, a name of the weights folder, or the path of a file or MONAI bundle"
    ] = None
    intensities: Annotated[Intensities, INTENSITIES_MEANING] = "auto"
    trainable: Annotated[str, TRAINABLE_MEANING] = TRAIN_ALL
    load_weights: Annotated[bool, "false where trained weights are loaded afterwards; the frozen ones always are"] = (
        True
    )
    whole: Annotated[bool, "true where the frozen layers are entries like the others, as in an exported model"] = False

    def check(self) -> None:
        """Check the head, and which layers are trained."""
        hidden_widths(self.head)
        require_trainable(self.trainable, self.norm, self.weights)

    @property
    def has_frozen(self) -> bool:
        """Whether a part of the network is never trained, and so does not travel."""
        return self.trainable != TRAIN_ALL or self.norm in FROZEN_NORMS

    def as_whole(self) -> ModelSpec:
        """The same network with its frozen layers as entries like the others; in evaluation mode it computes the same."""
        return replace(self, whole=True, load_weights=True, norm="batch" if self.norm in FROZEN_NORMS else self.norm)


def hidden_widths(head: str) -> tuple[int, ...]:
    """The widths of a head's hidden layers; none for one that is linear, on the last layer or on several.

    Raises:
        ConfigurationError: for anything but ``linear``, ``depths`` and ``mlp:<widths>``.

    Example:
        >>> hidden_widths("linear"), hidden_widths("mlp:256,64")
        ((), (256, 64))
    """
    if head in (LINEAR, DEPTHS):
        return ()
    if not re.fullmatch(r"mlp:[1-9]\d{0,4}(,[1-9]\d{0,4})*", head):
        raise ConfigurationError(
            f"head must be linear, depths or mlp:<widths>, such as mlp:256 or mlp:256,64; got {head!r}"
        )
    return tuple(int(width) for width in head.removeprefix("mlp:").split(","))


def require_trainable(trainable: str, norm: Norm, weights: str | None) -> None:
    """Check which layers are trained, and that every site can load the others.

    Raises:
        ConfigurationError: naming the option and its possible values.

    Example:
        >>> require_trainable("from:8", "batch", "imagenet")
    """
    if trainable not in (TRAIN_ALL, TRAIN_HEAD) and not trainable.startswith(FROM):
        raise ConfigurationError(f"problem.trainable must be all, head or from:<block>, got {trainable!r}")
    if norm in FROZEN_NORMS and weights is None:
        raise ConfigurationError(f"problem.norm={norm} needs batch norms with trained weights: set problem.weights")
    if norm == SITE_NORM and trainable == TRAIN_HEAD:
        raise ConfigurationError(
            "problem.norm=site is for batch norms in trained layers, and problem.trainable=head leaves none; train from "
            "the last block on (from:<block>), or set problem.norm to frozen"
        )


def require_whole_models(problem: Problem, needed_by: str) -> None:
    """Check that the server can compute with the sites' models.

    Raises:
        ConfigurationError: if the statistics of their batch norms stay at the sites.
    """
    if problem.norm == SITE_NORM:
        raise ConfigurationError(
            f"{needed_by} needs whole models at the server, and problem.norm=site leaves a part at the sites; set "
            "problem.norm to frozen or group"
        )


@dataclass(frozen=True)
class Problem(Options):
    """A classification problem that all sites of a job share. A site may lack some of the classes."""

    prefix: ClassVar[str] = "problem."

    dataset: Annotated[str, "the name under which each site's grandrounds.json knows its data; never a path", BASIC]
    classes: Annotated[tuple[str, ...], "the vocabulary; a label's index in it is its number everywhere"]
    image_size: Annotated[int, "side of the square images, in pixels", Min(1), BASIC] = 64
    channels: Annotated[Literal[1, 3], "1 (grey) or 3 (colour)"] = 3
    backbone: Annotated[str, "a name of the model registry", BASIC] = "compact"
    norm: Annotated[Norm, NORM_MEANING] = "batch"
    dropout: Annotated[float | None, "rate; null is the backbone's own", DROPOUT] = None
    dropout_at: Annotated[DropoutAt, "before the last linear layer, or inside the layers (densenet121 only)"] = "head"
    head: Annotated[str, HEAD_MEANING] = LINEAR
    weights: Annotated[
        str | None,
        "null, imagenet, a name of the weights folder, or a file or MONAI bundle that only the server reads",
        BASIC,
    ] = None
    intensities: Annotated[Intensities, INTENSITIES_MEANING] = "auto"
    trainable: Annotated[str, TRAINABLE_MEANING] = TRAIN_ALL
    task: Annotated[str, "single: each image has one class; multi: any of the classes, its findings"] = SINGLE.name
    preprocessing: Annotated[Preprocessing, PREPROCESSING_MEANING] = "exact"
    test_view: Annotated[
        Literal["half_turn"] | None,
        "half_turn: average an image's logits with those of the image turned by 180 degrees, wherever a model is scored, "
        "evaluated or exported; null: the image alone",
    ] = None

    def check(self) -> None:
        """Check the vocabulary, the head and which layers are trained."""
        hidden_widths(self.head)
        require_trainable(self.trainable, self.norm, self.weights)
        if self.has_frozen and not self.has_public_weights:
            raise ConfigurationError(
                "problem.weights: every site loads the frozen layers itself and cannot read a file of the server; run "
                f"`grandrounds weights add {self.weights}` at the server and the sites, and set problem.weights to its name"
            )
        if len(self.classes) < 2 or len(set(self.classes)) != len(self.classes):
            raise ConfigurationError(f"problem.classes must be at least two different names, got {list(self.classes)}")
        self.kind.check_vocabulary(self.classes)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Problem:
        """Read a job's ``problem`` entry.

        Raises:
            ConfigurationError: for an unknown or missing key, or a value that does not fit.
        """
        known = [field.name for field in fields(cls)]
        content = with_current_names(content, former_names(cls))
        for key in content:
            if key not in known:
                hint = did_you_mean(key, known)
                raise ConfigurationError(f"problem has no option {key!r}{hint} (options: {', '.join(known)})")
        missing = [key for key in ("dataset", "classes") if not content.get(key)]
        if missing:
            raise ConfigurationError(f"problem.{missing[0]} is missing")
        classes = content["classes"]
        return cls(**{**content, "classes": tuple(classes) if isinstance(classes, list) else classes})

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as they travel and as they are hashed."""
        return {**vars(self), "classes": list(self.classes)}

    @property
    def kind(self) -> Task:
        """What a label is, and all that follows from it."""
        return task_named(self.task)

    @property
    def has_frozen(self) -> bool:
        """Whether a part of the network is never trained, and so does not travel."""
        return self.trainable != TRAIN_ALL or self.norm in FROZEN_NORMS

    @property
    def has_public_weights(self) -> bool:
        """Whether sites can load the weights themselves: none, ImageNet's, or a name of the weights folder."""
        return self.weights is None or WEIGHTS_NAME.fullmatch(self.weights) is not None

    def for_sites(self) -> dict[str, Any]:
        """Plain values for the sites; a path of the server stays there."""
        return {**self.to_dict(), "weights": self.weights if self.has_public_weights else None}

    def model_spec(self, pretrained: bool) -> ModelSpec:
        """The model to build; a site asks without pretrained weights, because the server sends them."""
        stated = {name: value for name, value in vars(self).items() if name in ModelSpec.__dataclass_fields__}
        return _model_spec(**{**stated, "classes": len(self.classes), "load_weights": pretrained})


_model_spec = lru_cache(maxsize=64, typed=True)(ModelSpec)
"""Kept: a site asks several times in every task."""
