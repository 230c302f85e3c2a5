"""Messages as FLARE carries them: DXOs of an update and of the other releases, checked when they are read.

A site rounds updates to the precision of the task, which the server checks.

A job's executors are read where FLARE has put the client's part of the job.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from torch import Tensor

from grandrounds.checks import reraised_as
from grandrounds.errors import ConfigurationError, MessageError
from grandrounds.protocol import messages
from grandrounds.protocol.paths import job_part
from grandrounds.protocol.plain import plain
from grandrounds.protocol.tensors import (
    FULL,
    PRECISION,
    UPDATE_PRECISION,
    UpdatePrecision,
    require_finite_tensors,
    require_precision,
    require_tensors,
    rounded,
    widened,
)


class OtherProtocol(MessageError):
    """A message of another version of the protocol."""


def encode_payload(payload: messages.Payload) -> Shareable:
    """Turn a payload into a FLARE message."""
    parts = {name: DXO(DataKind.WEIGHTS, data=_contiguous(state)) for name, state in payload.parts.items()}
    header = {"protocol": messages.PROTOCOL, "round": payload.round_number, "values": dict(payload.values)}
    return DXO(DataKind.COLLECTION, data=parts, meta=header).to_shareable()


def decode_payload(message: Shareable) -> messages.Payload:
    """Read a payload at a site.

    Raises:
        MessageError: if the message is not a payload, the run's name is not plain, the round or the seed is none, or an
            entry is not a finite tensor.
    """
    parts, header = _collection(message, share=True)
    values = header.get("values")
    if not isinstance(values, dict):
        raise MessageError("the task has no values in its header")
    messages.require_run_name(values.get("run_name"))
    messages.require_run_name(values.get("run_id"), "run_id")
    if not 0 <= header["round"] <= messages.MAX_ROUND:
        raise MessageError(
            f"the round of a task must be a number from 0 to {messages.MAX_ROUND}, got {header['round']}"
        )
    if type(values.get("seed", 0)) is not int:
        raise MessageError(f"the seed of a task must be a whole number, got {type(values['seed']).__name__}")
    for name, part in parts.items():
        require_finite_tensors(part.data, name)
    return messages.Payload(header["round"], values, {name: part.data for name, part in parts.items()})


def encode_result(
    result: messages.Result,
    declared: Mapping[str, messages.ReleaseKind],
    asked: messages.Payload,
    facts: Collection[str] = (),
) -> Shareable:
    """Turn a result into a FLARE message.

    Args:
        result: what the method made.
        declared: names and kinds of the releases that the method has declared; nothing else leaves the site.
        asked: the task that is answered.
        facts: names of the short texts that the method has declared for this task.

    Raises:
        MessageError: if a release or fact is not declared, an entry no finite tensor, a metric no finite number,
            or a fact no short text.
    """
    metrics, stated = plain(dict(result.metrics), "metrics"), plain(dict(result.facts), "facts")
    _require_metrics(metrics)
    messages.require_facts(stated)
    for name in stated:
        if name not in facts:
            raise MessageError(f"fact {name!r} is not declared by the method (declared: {sorted(facts)})")
    parts = {messages.METRICS: DXO(DataKind.METRICS, data={name: float(value) for name, value in metrics.items()})}
    if stated:
        parts[messages.FACTS] = DXO(DataKind.APP_DEFINED, data=stated)
    for name, release in result.releases.items():
        if declared.get(name) != release.kind:
            raise MessageError(
                f"release {name!r} of kind {release.kind.value} is not declared by the method (declared: {sorted(declared)})"
            )
        require_tensors(release.tensors, name)
        tensors = plain(dict(release.tensors), name, share=True)
        require_finite_tensors(tensors, name)
        kind = DataKind.WEIGHT_DIFF if release.kind is messages.ReleaseKind.MODEL_UPDATE else DataKind.APP_DEFINED
        parts[name] = DXO(kind, data=tensors, meta={"release": release.kind.value})
    task = {"protocol": messages.PROTOCOL, "round": asked.round_number, "run_id": asked.values["run_id"]}
    return DXO(DataKind.COLLECTION, data=parts, meta={**task, "samples": int(result.samples)}).to_shareable()


def decode_result(message: Shareable, asked: messages.Payload) -> messages.Result:
    """Read a result at the server.

    Args:
        message: what came.
        asked: the task that should be answered.

    Raises:
        MessageError: if the message is not a result or answers another task, an entry is not a finite tensor or of another
            precision than the task asks for, a metric no finite number, a fact no short text, or the number of samples
            or the head of the ledger makes no sense.
    """
    parts, header = _collection(message, share=False)
    if (header["round"], header.get("run_id")) != (asked.round_number, asked.values["run_id"]):
        raise MessageError(
            f"the answer is to another task (round {header['round']}, asked in round {asked.round_number})"
        )
    metrics = dict(parts.pop(messages.METRICS).data) if messages.METRICS in parts else {}
    _require_metrics(metrics)
    facts = parts.pop(messages.FACTS).data if messages.FACTS in parts else {}
    messages.require_facts(facts)
    releases = {}
    for name, part in parts.items():
        try:
            kind = messages.ReleaseKind(part.get_meta_prop("release"))
        except ValueError as error:
            raise MessageError(f"the result has an unknown part {name!r}") from error
        require_tensors(part.data, name)
        precision = precision_of(part, name, asked.values)
        tensors = widened(part.data, precision, name)
        require_finite_tensors(tensors, name)
        treated = part.get_meta_prop(messages.TREATED)
        known = isinstance(treated, str) and messages.TREATMENT.fullmatch(treated) is not None
        releases[name] = messages.Release(kind, tensors, treated if known else "", precision)
    samples = header.get("samples")
    if not isinstance(samples, int) or not (messages.UPDATE in releases) <= samples <= messages.MAX_SAMPLES:
        raise MessageError(
            f"an update must come with its number of samples, at most {messages.MAX_SAMPLES}, got {samples!r}"
        )
    head, changes = messages.require_head(header.get(messages.LEDGER_HEAD)), header.get(messages.DATA_CHANGES, 0)
    if type(changes) is not int or not 0 <= changes <= messages.MAX_ROUND:
        raise MessageError(
            f"{messages.DATA_CHANGES} must be a number from 0 to {messages.MAX_ROUND}, got {str(changes)[:40]!r}"
        )
    return messages.Result(releases, metrics, samples, dict(facts), head, changes)


def _collection(message: Shareable, share: bool) -> tuple[dict[str, DXO], dict[str, Any]]:
    encoded = dict.get(message, messages.DXO_KEY)
    if not isinstance(encoded, dict):
        raise MessageError("the message holds no data exchange object")
    # FLARE's own headers, which are not read here, may hold anything.
    content = plain(encoded, "the message", share)
    with reraised_as(MessageError, ValueError, where="the message holds no data exchange object"):
        dxo = DXO(content.get("kind"), content.get("data"), content.get("meta"))
    if (
        dxo.data_kind != DataKind.COLLECTION
        or not isinstance(dxo.data, dict)
        or not all(isinstance(part, DXO) for part in dxo.data.values())
    ):
        raise MessageError(f"the message must be a collection of data exchange objects, got {dxo.data_kind}")
    header = dict(dxo.meta or {})
    if header.get("protocol") != messages.PROTOCOL or not isinstance(header.get("round"), int):
        raise OtherProtocol(
            f"the message is of protocol {header.get('protocol')!r}, expected {messages.PROTOCOL!r}: install one version of "
            "grandrounds at the server and at all hospitals"
        )
    return dict(dxo.data), header


def _require_metrics(metrics: Mapping[str, Any]) -> None:
    if len(metrics) > messages.MAX_METRICS:
        raise MessageError(f"there are {len(metrics)} metrics, at most {messages.MAX_METRICS} are accepted")
    for name, value in metrics.items():
        if not isinstance(name, str) or not messages.MESSAGE_NAME.fullmatch(name):
            raise MessageError(f"a metric's name must be at most 128 plain characters, got {str(name)[:40]!r}")
        if not isinstance(value, int | float) or not abs(value) <= messages.LARGEST_METRIC:
            came = value if isinstance(value, float) else type(value).__name__  # a huge integer cannot be written out
            raise MessageError(f"metric {name!r} must be a finite number, got {came}")


def _contiguous(state: messages.State) -> dict[str, Tensor]:
    # FLARE's streaming refuses other layouts, such as channels-last kernels.
    return {name: value.contiguous() for name, value in state.items()}


def executor_arguments(fl_ctx: FLContext) -> dict[str, dict[str, Any]] | None:
    """The arguments of the job's executors by path, as this party has them.

    Returns:
        None if the client's part of the job is not here, or is no JSON.
    """
    path = job_part(fl_ctx.get_engine().get_workspace(), fl_ctx.get_job_id(), "client")
    try:
        entries = [entry["executor"] for entry in json.loads(path.read_text(encoding="utf-8"))["executors"]]
        return {str(entry["path"]): dict(entry.get("args", {})) for entry in entries}
    except (OSError, ValueError, LookupError, TypeError):
        return None


def stated_arguments(fl_ctx: FLContext) -> dict[str, Any] | None:
    """The arguments of the job's controller, as this party has them.

    Returns:
        None if the server's part of the job is not here, or states no problem.
    """
    path = job_part(fl_ctx.get_engine().get_workspace(), fl_ctx.get_job_id(), "server")
    try:
        stated = [workflow["args"] for workflow in json.loads(path.read_text(encoding="utf-8"))["workflows"]]
        (arguments,) = [one for one in stated if "problem" in one]
        return {**arguments, "problem": dict(arguments["problem"]), "seed": int(arguments.get("seed", 0))}
    except (OSError, ValueError, LookupError, TypeError):
        return None


def stated_problem(fl_ctx: FLContext) -> tuple[dict[str, Any], int] | None:
    """The problem and the seed of :func:`stated_arguments`."""
    stated = stated_arguments(fl_ctx)
    return None if stated is None else (stated["problem"], stated["seed"])


def asks_for_models(executors: Mapping[str, Mapping[str, Any]] | None) -> bool:
    """Whether one of a job's executors, by its arguments, has sites release their own models.

    Example:
        >>> asks_for_models({"a.B": {"model": "own", "release_model": True}}), asks_for_models(None)
        (True, False)
    """
    return any(arguments.get("release_model") is True for arguments in (executors or {}).values())


def job_backbones(executors: Mapping[str, Mapping[str, Any]] | None) -> set[str]:
    """The backbones that a job's executors, by their arguments, choose for sites.

    Example:
        >>> job_backbones({"a.B": {"model": "own", "backbones": {"site-1": "resnet10"}}}), job_backbones(None)
        ({'resnet10'}, set())
    """
    chosen = (arguments.get("backbones") for arguments in (executors or {}).values())
    return {str(name) for backbones in chosen if isinstance(backbones, Mapping) for name in backbones.values()}


def round_updates(message: Shareable, values: Mapping[str, Any]) -> None:
    """Round the model update of an answer to the precision that the task asks for; other releases stay as they are.

    Args:
        message: a site's answer, as its filters have let it out; it is changed.
        values: of the task.

    Raises:
        MessageError: if the precision is unknown, or an entry is not of single precision or beyond the precision's range;
            the entry is named.
    """
    precision = _asked_precision(values)
    if precision == FULL:
        return
    collection = from_shareable(message)
    for name, part in collection.data.items():
        if part.data_kind == DataKind.WEIGHT_DIFF:
            part.data = rounded(part.data, precision, name)
            part.set_meta_prop(PRECISION, precision)
    collection.update_shareable(message)


def precision_of(part: DXO, name: str, values: Mapping[str, Any]) -> UpdatePrecision:
    """The precision in which a release has travelled.

    Raises:
        MessageError: if it is another than the task has asked for.
    """
    asked = _asked_precision(values) if part.data_kind == DataKind.WEIGHT_DIFF else FULL
    came = part.get_meta_prop(PRECISION, FULL)
    if came != asked:
        raise MessageError(f"{name} came in {came!r}, asked for was {asked}: same versions?")
    return asked


def _asked_precision(values: Mapping[str, Any]) -> UpdatePrecision:
    with reraised_as(MessageError, ConfigurationError, where="the task is of another version"):
        return require_precision(values.get(UPDATE_PRECISION, FULL))
