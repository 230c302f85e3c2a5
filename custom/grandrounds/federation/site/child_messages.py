"""What a job's process and its training child say to each other, as JSON and safetensors; whatever comes is checked."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from grandrounds.checks import reraised_as
from grandrounds.errors import (
    CheckpointError,
    ConfigurationError,
    DataError,
    Fault,
    GrandRoundsError,
    InUseError,
    MessageError,
    UsageError,
)
from grandrounds.federation.site.context import TaskAborted
from grandrounds.protocol.messages import Payload, Release, ReleaseKind, Result, State
from grandrounds.protocol.spending import Mechanism, Spending, Unit

READY, TASK, RESULT, LEFT, DONE = "ready", "task", "result", "left", "done"
ERROR, LOG, QUESTION, ANSWER = "error", "log", "question", "answer"
LONGEST_NAME, LONGEST_TEXT, LONGEST_TRACE = 200, 4000, 20_000
ERRORS = {
    error.__name__: error
    for error in (
        *(DataError, ConfigurationError, MessageError, CheckpointError, UsageError, InUseError, GrandRoundsError),
        *(TaskAborted, PermissionError, OSError, RuntimeError),
    )
}
"""The errors that stay what they are; of others only the words arrive."""
Message = tuple[dict[str, Any], bytes]


def task_message(task: str, payload: Payload, gate: Mapping[str, bool]) -> Message:
    """A task with what is known of the site's gate."""
    tensors, body = _packed(payload.parts)
    values = {"round": payload.round_number, "values": dict(payload.values)}
    return {"kind": TASK, "task": task, **values, "gate": dict(gate), "tensors": tensors}, body


def task_payload(header: Mapping[str, Any], body: bytes | bytearray) -> Payload:
    """The payload of :func:`task_message`."""
    return Payload(header["round"], header["values"], _unpacked(header["tensors"], body))


def result_message(kind: str, result: Result) -> Message:
    """A result; the head of a ledger and the changes of data are the gate's, and are no part of it."""
    tensors, body = _packed({name: release.tensors for name, release in result.releases.items()})
    kinds = {name: release.kind.value for name, release in result.releases.items()}
    metrics = {name: float(value) for name, value in result.metrics.items()}
    numbers = {"kinds": kinds, "metrics": metrics, "samples": int(result.samples), "facts": dict(result.facts)}
    return {"kind": kind, **numbers, "tensors": tensors}, body


def result_from(header: Mapping[str, Any], body: bytes | bytearray) -> Result:
    """The result of :func:`result_message`.

    Raises:
        MessageError: if a part of it is missing, or is not what it must be.
    """
    kinds, metrics, facts = (_table(header, name) for name in ("kinds", "metrics", "facts"))
    samples, parts = header.get("samples"), _unpacked(header.get("tensors"), body)
    if type(samples) is not int or samples < 0:
        raise MessageError(f"samples of the training child must be a whole number, got {_kind_of(samples)}")
    if not all(type(value) is float for value in metrics.values()):
        raise MessageError("a metric of the training child is no number")
    if kinds.keys() != parts.keys():
        raise MessageError("the releases of the training child are not those of its tensors")
    with reraised_as(MessageError, ValueError, where="a release of the training child"):
        releases = {name: Release(ReleaseKind(kinds[name]), tensors) for name, tensors in parts.items()}
    return Result(releases, metrics, samples, facts)


def require_shapes(update: State, model: State) -> None:
    """Check that an update has entries of the model that was sent, in their shapes and dtypes.

    Raises:
        MessageError: naming the entry that differs.
    """
    for name, value in update.items():
        expected = model.get(name)
        if expected is None or (expected.shape, expected.dtype) != (value.shape, value.dtype):
            raise MessageError(
                f"the update of the training child has {name[:80]!r} of {value.dtype}, shape {tuple(value.shape)}, which "
                "the model that was sent has not"
            )


def error_message(error: Exception) -> dict[str, Any]:
    """An error with its traceback."""
    known = next((base.__name__ for base in type(error).__mro__ if base.__name__ in ERRORS), "")
    text = str(error) if known else f"{type(error).__name__}: {error}"
    trace = "".join(traceback.format_exception(error))
    return {"kind": ERROR, "type": known, "text": text[:LONGEST_TEXT], "trace": trace[-LONGEST_TRACE:]}


def read_error(header: Mapping[str, Any]) -> Exception:
    """The error of :func:`error_message`; if it is not among :data:`ERRORS`, a ``RuntimeError``."""
    kind, text, trace = (str(header.get(name, "")) for name in ("type", "text", "trace"))
    error = ERRORS.get(kind, RuntimeError)(text[:LONGEST_TEXT])
    error.add_note(trace[-LONGEST_TRACE:])
    return error


def question_message(method: str, arguments: tuple[Any, ...]) -> dict[str, Any]:
    """A question to the site's gate."""
    plain = [asdict(value) if isinstance(value, Spending) else value for value in arguments]
    named = [value.name if isinstance(value, Fault) else value for value in plain]
    return {"kind": QUESTION, "method": method, "arguments": named}


def read_question(header: Mapping[str, Any]) -> tuple[str, tuple[Any, ...]]:
    """The method of the gate and its arguments, of :func:`question_message`.

    Raises:
        MessageError: if a child may not ask it, or not so.
    """
    method, arguments = header.get("method"), header.get("arguments")
    match method, arguments:
        case "begin_reading", []:
            return method, ()
        case "admit_training", [None]:
            return method, (None,)
        case "admit_training", [dict(cost)]:
            return method, (_spending(cost),)
        case "note_failure", [str(cause), str(fault)] if fault in Fault.__members__:
            return method, (cause[:LONGEST_TEXT], Fault[fault])
        case "row_noise", [str(name)]:
            return method, (name,)
        case "release_minimum", [str(kind), str(name)] if kind in set(ReleaseKind):
            return method, (kind, name)
    raise MessageError(f"the training child may not ask {str(method)[:80]!r} of the site's gate, or not so")


def _spending(cost: Mapping[str, Any]) -> Spending:
    with reraised_as(MessageError, ValueError, TypeError, KeyError, where="the cost of a training"):
        numbers = {name: value for name, value in cost.items() if name not in ("mechanism", "unit")}
        if not all(type(value) in (int, float) for value in numbers.values()):
            raise TypeError("not all of it is numbers")
        return Spending(Mechanism(cost["mechanism"]), Unit(cost["unit"]), **numbers)


def _packed(states: Mapping[str, State]) -> tuple[dict[str, list[str]], bytes]:
    """Names of the tensors by part, and the tensors in this order under their numbers."""
    flat: dict[str, Tensor] = {}
    memory: set[int] = set()
    for state in states.values():
        for value in state.values():
            tensor = value.detach().cpu().contiguous()
            address = tensor.untyped_storage().data_ptr()
            flat[str(len(flat))] = tensor.clone() if address in memory else tensor
            memory.add(address)
    return {part: list(state) for part, state in states.items()}, safetensors.torch.save(flat)


def _unpacked(names: object, body: bytes | bytearray) -> dict[str, dict[str, Tensor]]:
    parts: dict[str, list[str]] = names if isinstance(names, dict) else {}
    if not isinstance(names, dict) or not all(
        isinstance(part, list) and all(isinstance(name, str) for name in part) for part in parts.values()
    ):
        raise MessageError("a message between processes has no names of its tensors")
    with reraised_as(
        MessageError, SafetensorError, ValueError, KeyError, where="tensors of a message between processes"
    ):
        content = safetensors.torch.load(bytes(body))
    wanted = [name for part in parts.values() for name in part]
    if content.keys() != {str(number) for number in range(len(wanted))}:
        raise MessageError("a message between processes has other tensors than it names")
    tensors = (content[str(number)] for number in range(len(wanted)))
    return {part: {name: next(tensors) for name in part_names} for part, part_names in parts.items()}


def _table(header: Mapping[str, Any], name: str) -> dict[str, Any]:
    table = header.get(name)
    if not isinstance(table, dict):
        raise MessageError(f"{name} of the training child must be a table, got {_kind_of(table)}")
    return table


def _kind_of(value: object) -> str:
    return type(value).__name__
