"""The kinds of releases: what form each has, and which treatments fit it.

A method with a release of a new kind adds it to :class:`~grandrounds.protocol.messages.ReleaseKind` and to ``KINDS``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from grandrounds.errors import MessageError
from grandrounds.evaluation.clinical.image_moments import MOMENTS, channels_of
from grandrounds.evaluation.counts import IMAGES, MARGIN_BINS, PATIENTS, counts_shape
from grandrounds.evaluation.curves.binned import CURVE_COUNTS, curves_shape
from grandrounds.evaluation.score_sums import SCORE_ENTRIES, score_shapes
from grandrounds.privacy.gate.treatments import (
    LABEL_MARGINS,
    MATRIX,
    SUPPORT,
    ClipAndNoise,
    ClipAndNoiseSamples,
    CountSupport,
    CurveSupport,
    Deny,
    Logits,
    Masked,
    MinimumSupport,
    MomentSupport,
    Quantise,
    RecordLevel,
    SumSupport,
    Treatment,
    Unmodified,
)
from grandrounds.protocol.descriptions import MODEL_DESCRIPTION, read_description
from grandrounds.protocol.messages import ReleaseKind
from grandrounds.protocol.task import Task
from grandrounds.protocol.tasks import SINGLE

WEIGHT_DIFF, APP_DEFINED = "WEIGHT_DIFF", "APP_DEFINED"
"""FLARE's data kinds."""
DISTRIBUTION_TOLERANCE = 1e-2
"""By which the sum of a distribution in half precision may differ from one."""
MOST_DIMENSIONS = 5
"""Of an entry of a site's own network; the gate knows nothing else about it."""


@dataclass(frozen=True)
class Expected:
    """What an answer must fit.

    ``template`` has shape and dtype of each entry of the model that the server has sent, ``largest`` is the largest
    absolute value of a weight; ``patients`` is their number in each part of the site's data, ``images`` that of the
    training images, ``public_rows`` that of the images which the site itself calls public; ``task`` is what labels are;
    ``asks_for_model`` is whether the task is the test of a job that has sites release their own models; ``backbones`` are
    those that the job or the site itself names.
    """

    round_number: int
    run_id: str
    classes: int
    template: Mapping[str, tuple[tuple[int, ...], torch.dtype]]
    patients: Mapping[str, int]
    images: int = 0
    largest: float = 0.0
    public_rows: int = 0
    task: Task = SINGLE
    asks_for_model: bool = False
    backbones: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Kind:
    """What the gate knows of a kind of release.

    Attributes:
        treatments: those that a policy may choose, beside ``deny``.
        mismatch: what is wrong with a tensor (its name, its values) of such a release; empty if it has the kind's form.
        entries: the names of its tensors; empty if a policy must name them.
        data_kind: FLARE's data kind that carries it.
    """

    treatments: tuple[type[Treatment], ...]
    mismatch: Callable[[str, Tensor, Expected], str]
    entries: tuple[str, ...] = ()
    data_kind: str = APP_DEFINED

    def treatment(self, name: str) -> type[Treatment] | None:
        """The treatment of this name in a policy; None if it does not fit this kind."""
        choices: tuple[type[Treatment], ...] = (*self.treatments, Deny)
        return next((treatment for treatment in choices if treatment.name == name), None)


def treatment_names() -> list[str]:
    """The names of all treatments, as a policy writes them."""
    return sorted({Deny.name, *(treatment.name for kind in KINDS.values() for treatment in kind.treatments)})


def _unlike_model(name: str, value: Tensor, expected: Expected) -> str:
    known = expected.template.get(name)
    if known is None:
        return "the model from the server has no such entry"
    return "" if known == (tuple(value.shape), value.dtype) else f"in the model from the server it is {known}"


def _no_class_statistics(name: str, value: Tensor, expected: Expected) -> str:
    rows, columns = expected.task.relation_shape(expected.classes)
    if tuple(value.shape) not in ((rows,), (rows, columns)):
        return f"expected shape ({rows},) or ({rows}, {columns})"
    # A method may miscount its patients; a class cannot have more of them than all training images together.
    count = int(value.max()) if name == SUPPORT else 0
    return _too_many(count, "train", expected)


def _no_soft_labels(_: str, value: Tensor, expected: Expected) -> str:
    shaped = value.dim() == 2 and value.shape[1] == expected.classes
    fits = shaped and (value.is_floating_point() or value.dtype == torch.uint8)
    if fits and 1 <= value.shape[0] <= expected.public_rows:
        return ""
    return (
        f"expected floating point or uint8 of shape (public images, {expected.classes}), at most {expected.public_rows}"
    )


def no_distributions(value: Tensor) -> bool:
    """Whether a row of soft labels, shape ``(images, classes)``, is not a distribution as far as its format rounds.

    Example:
        >>> no_distributions(torch.tensor([[0.7, 0.3]])), no_distributions(torch.tensor([[178, 76]], dtype=torch.uint8))
        (False, False)
        >>> no_distributions(torch.tensor([[0.7, 0.7]]))
        True
    """
    scaled = value.double() / (255.0 if value.dtype == torch.uint8 else 1.0)
    rounding = value.shape[1] / 255.0 if value.dtype == torch.uint8 else DISTRIBUTION_TOLERANCE
    return bool((scaled < 0).any()) or bool(((scaled.sum(dim=1) - 1).abs() > rounding).any())


def _no_embeddings(_: str, value: Tensor, __: Expected) -> str:
    fits = value.dim() == 2 and value.is_floating_point()
    return "" if fits else "expected floating point of shape (samples, features)"


def _no_weights(_: str, value: Tensor, __: Expected) -> str:
    return "" if value.is_floating_point() else "expected floating point"


def _no_curves(_: str, value: Tensor, expected: Expected) -> str:
    shape = curves_shape(expected.classes)
    if tuple(value.shape) != shape or value.dtype != torch.int64:
        return f"expected int64 of shape {shape}"
    # Clamped, so that the sum of enormous counts cannot overflow.
    cases = int(value.clamp(0, expected.patients.get("test", 0) + 1).sum(dim=2).max())
    return _too_many(cases, "test", expected)


def _no_counts(name: str, value: Tensor, expected: Expected) -> str:
    if wrong := _no_table(value, expected):
        return wrong
    part = max(("val", "test"), key=lambda part: expected.patients.get(part, 0))
    return _too_many(int(value.max()) if name == PATIENTS else 0, part, expected)


def _no_moments(name: str, value: Tensor, expected: Expected) -> str:
    if name == SUPPORT:
        fits = tuple(value.shape) == (1,) and value.dtype == torch.int64
        return _too_many(int(value), "train", expected) if fits else "expected int64 of shape (1,)"
    if value.dtype != torch.float64:
        return "expected float64"
    try:
        channels_of(value.numpy())
    except ValueError as error:
        return str(error)
    return ""


def _no_sums(name: str, value: Tensor, expected: Expected) -> str:
    if name in (SUPPORT, "class_counts", LABEL_MARGINS):
        shape = (MARGIN_BINS, expected.classes) if name == LABEL_MARGINS else (expected.classes,)
        if tuple(value.shape) != shape or value.dtype != torch.int64:
            return f"expected int64 of shape {shape}"
        if bool((value < 0).any()) or (name != SUPPORT and int(value.max()) > expected.images):
            return f"expected counts of at most {expected.images} images, got {int(value.min())} to {int(value.max())}"
        return _too_many(int(value.max()), "train", expected) if name == SUPPORT else ""
    fits = value.dtype == torch.float64 and value.dim() == (2 if name == "targets" else 1)
    return "" if fits and (value.dim() == 1 or value.shape[1] == expected.classes) else "expected sums in float64"


def _no_network(name: str, value: Tensor, expected: Expected) -> str:
    if not expected.asks_for_model:
        return "only the test of a job with executor.release_model=true asks for a site's own model"
    if name == MODEL_DESCRIPTION:
        try:
            read_description(value)
        except MessageError as error:
            return str(error)
    return "" if value.dim() <= MOST_DIMENSIONS else f"expected at most {MOST_DIMENSIONS} dimensions"


def _of_the_gate(_: str, __: Tensor, ___: Expected) -> str:
    return "only the gate masks"


def _no_scores(name: str, value: Tensor, expected: Expected) -> str:
    shape = score_shapes(expected.task, expected.classes)[name]
    return "" if tuple(value.shape) == shape else f"expected shape {shape}"


def _no_table(value: Tensor, expected: Expected) -> str:
    shape = counts_shape(expected.task.answers(expected.classes))
    fits = tuple(value.shape) == shape and value.dtype == torch.int64
    return "" if fits else f"expected int64 of shape {shape}"


def _too_many(count: int, part: str, expected: Expected) -> str:
    patients = expected.patients.get(part, 0)
    return f"it counts {count}, but the {part} images are of {patients} patients" if count > patients else ""


OF_SUMS = (SUPPORT, "class_counts", "products", "targets", "losses", "answers", LABEL_MARGINS)
KINDS: Mapping[ReleaseKind, Kind] = MappingProxyType(
    {
        ReleaseKind.MODEL_UPDATE: Kind(
            (ClipAndNoise, RecordLevel, Unmodified, Masked), _unlike_model, data_kind=WEIGHT_DIFF
        ),
        ReleaseKind.DISCRIMINATOR: Kind((ClipAndNoise, RecordLevel, Unmodified), _no_weights),
        ReleaseKind.CLASS_STATISTICS: Kind((MinimumSupport, Masked), _no_class_statistics, (MATRIX, SUPPORT)),
        ReleaseKind.CURVES: Kind((CurveSupport,), _no_curves, (CURVE_COUNTS,)),
        ReleaseKind.COUNTS: Kind((CountSupport,), _no_counts, (IMAGES, PATIENTS)),
        ReleaseKind.IMAGE_MOMENTS: Kind((MomentSupport,), _no_moments, (MOMENTS, SUPPORT)),
        ReleaseKind.SUFFICIENT_STATISTICS: Kind((SumSupport, Masked), _no_sums, OF_SUMS),
        ReleaseKind.SCORES: Kind((Masked,), _no_scores, SCORE_ENTRIES),
        ReleaseKind.SITE_MODEL: Kind((Unmodified,), _no_network, ("*",)),
        ReleaseKind.SOFT_LABELS: Kind((Quantise, RecordLevel, Unmodified, Logits, Masked), _no_soft_labels),
        ReleaseKind.MASKED_SUM: Kind((), _of_the_gate),
        ReleaseKind.EMBEDDINGS: Kind((ClipAndNoiseSamples, Unmodified), _no_embeddings),
    }
)  # fmt: skip
