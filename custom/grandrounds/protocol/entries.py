"""Entries of a state: those that are floating-point, their bytes, and whether two states are alike."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from grandrounds.errors import MessageError
from grandrounds.protocol.messages import State

RUNNING_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def require_like(state: State, template: State, name: str) -> None:
    """Check that two states have the same entries, shapes and dtypes.

    Raises:
        MessageError: naming the first entry that differs, what was expected and what came.
    """
    missing = sorted(template.keys() - state.keys())
    unknown = sorted(state.keys() - template.keys())
    if missing or unknown:
        what = f"lacks {missing[0]!r}" if missing else f"has the unknown entry {unknown[0]!r}"
        raise MessageError(f"{name} {what} ({len(missing)} missing, {len(unknown)} unknown): another architecture?")
    for key, expected in template.items():
        came = state[key]
        if came.shape != expected.shape or came.dtype != expected.dtype:
            raise MessageError(
                f"{name}[{key!r}] must be {expected.dtype} of shape {tuple(expected.shape)}, "
                f"got {came.dtype} of shape {tuple(came.shape)}"
            )


def tensor_bytes(states: Mapping[str, State]) -> dict[str, int]:
    """Bytes of the tensors in each named state."""
    return {name: sum(t.numel() * t.element_size() for t in state.values()) for name, state in states.items()}


def floating_entries(state: State) -> dict[str, Tensor]:
    """The entries that are trained or averaged: not the integer counters of batch norm, which nothing depends on."""
    return {name: value for name, value in state.items() if value.is_floating_point()}


def is_running_statistic(name: str) -> bool:
    """Whether a ``state_dict`` name belongs to the running statistics of a normalisation layer.

    Example:
        >>> is_running_statistic("stem.1.running_mean"), is_running_statistic("stem.1.weight")
        (True, False)
    """
    return name.rpartition(".")[2] in RUNNING_STATISTICS
