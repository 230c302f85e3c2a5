"""Checks whose errors name the argument, what was expected and what came; and where, in errors of others."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grandrounds.errors import ConfigurationError, DataError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

ROW_SUM_TOLERANCE = 1e-4


def require_fraction(value: float, name: str) -> float:
    """Return ``value`` if it lies in [0, 1].

    Raises:
        ValueError: if it does not (NaN included).

    Example:
        >>> require_fraction(0.25, "labelled")
        0.25
    """
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} must be between 0 and 1, got {value}")
    return value


def require_at_least(value: float, minimum: float, name: str) -> None:
    """Raise ``ValueError`` unless ``value >= minimum`` (NaN fails)."""
    if not value >= minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {value}")


def as_path(given: object, what: str, otherwise: str = "") -> Path:
    """A path that somebody has given.

    Args:
        given: text or a path.
        what: it is, for the error.
        otherwise: what to do with an object of another kind, for the error.

    Raises:
        ConfigurationError: if it is of another type.

    Example:
        >>> as_path("runs/a", "workspace").name
        'a'
    """
    if isinstance(given, str | os.PathLike):
        return Path(given)
    raise ConfigurationError(f"{what} must be a path, got {type(given).__name__}{otherwise and f'; {otherwise}'}")


def require_mapping(given: object, name: str, example: str) -> None:
    """Check that an argument is a mapping.

    Args:
        given: the argument.
        name: of it, for the error.
        example: what it may look like, for the error.

    Raises:
        ConfigurationError: if it is none.

    Example:
        >>> require_mapping({"executor.steps": 3}, "options", '{"executor.steps": 3}')
    """
    if not isinstance(given, Mapping):
        raise ConfigurationError(f"{name} must be a mapping such as {example}, got {type(given).__name__}")


def on_host(values: Any) -> bool:
    """Whether looking at values, of an array or a tensor, does not make the host wait for an accelerator."""
    return bool(getattr(values, "is_cpu", True))


def require_probabilities(probabilities: Tensor | NDArray[np.floating], name: str) -> None:
    """Check that every row is a distribution over classes; of a tensor on an accelerator only the shape.

    Args:
        probabilities: shape ``(samples, classes)``, floating point.
        name: how the error calls it.

    Raises:
        ValueError: if the shape is not two-dimensional, an entry is negative or not finite, or a row does not sum to
            one (within ``ROW_SUM_TOLERANCE``); the first offending row is named.
    """
    if probabilities.ndim != 2:
        raise ValueError(f"{name} must have shape (samples, classes), got {tuple(probabilities.shape)}")
    if not on_host(probabilities):
        return
    # Written for tensors and arrays alike, because commands that only read results load no torch.
    bad: Any = ~((probabilities >= 0) & (probabilities < math.inf)).all(1)
    if bad.any():
        raise ValueError(f"row {list(bad).index(True)} of {name} has a negative or non-finite entry")
    sums = probabilities.sum(1)
    wrong: Any = abs(sums - 1) > ROW_SUM_TOLERANCE
    if wrong.any():
        row = list(wrong).index(True)
        raise ValueError(f"row {row} of {name} sums to {float(sums[row]):.6g}, expected 1")


def require_known_label(label: str, classes: Sequence[str], where: str) -> None:
    """Raise ``DataError`` unless ``label`` is one of ``classes``; the message lists them and suggests the nearest."""
    if label in classes:
        return
    hint = did_you_mean(label, classes, "{!r}", 0.5)
    raise DataError(f"{where}: {label!r} is not one of the classes {', '.join(classes)}{hint}")


def did_you_mean(name: str, known: Iterable[str], form: str = "{}", cutoff: float = 0.6) -> str:
    """The hint of a refusal that names the nearest known name in this form; empty if none is near.

    Example:
        >>> did_you_mean("FedAvgg", ["fedavg", "ridge"]), did_you_mean("x", ["ridge"])
        ('; did you mean fedavg?', '')
    """
    spellings = {own.casefold(): own for own in known}
    nearest = difflib.get_close_matches(name.casefold(), spellings, n=1, cutoff=cutoff)
    return f"; did you mean {form.format(spellings[nearest[0]])}?" if nearest else ""


@contextmanager
def reraised_as(kind: Callable[[str], Exception] | None, *errors: type[Exception], where: str = "") -> Iterator[None]:
    """Raise errors of the given classes again as another class, with the same message.

    Args:
        kind: makes the new error from the message; None: its own class, and only ``where`` is added.
        errors: the classes that are caught.
        where: a prefix of the message; none if it is empty.

    Example:
        >>> try:
        ...     with reraised_as(DataError, ValueError, where="labels.csv"):
        ...         int("x")
        ... except DataError as error:
        ...     print(error)
        labels.csv: invalid literal for int() with base 10: 'x'
    """
    try:
        yield
    except errors as error:
        raise (kind or type(error))(f"{where}: {error}" if where else str(error)) from error
