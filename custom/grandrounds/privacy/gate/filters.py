"""The gate as FLARE filters.

FLARE applies a site's filters to every task, before the job's, and no job can remove them. FLARE's own base class for
filters passes unknown content unchanged; this gate answers it with an empty reply. The gate is in a scope twice. As a
filter of tasks it notes what an answer must fit and refuses tasks beyond the budget. As a filter of answers it treats them.
It cannot be a filter of a job.
"""

from __future__ import annotations

import time
from collections import ChainMap
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.filter import Filter, FilterChainType, FilterContextKey, FilterSource
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import ReservedHeaderKey, Shareable, make_reply
from nvflare.apis.utils.fl_context_utils import add_job_audit_event
from nvflare.fuel.utils import fobs

from grandrounds.errors import ConfigurationError, Fault, GrandRoundsError, MessageError
from grandrounds.privacy.gate.audit import AUDIT_NAME, FAILED, Refused, refusing, write_audit
from grandrounds.privacy.gate.datasets import InventoryRequest, take_inventory
from grandrounds.privacy.gate.gate import SCORES, Gate, TaskFacts, audit_fields
from grandrounds.privacy.gate.inspection import Answer, Part
from grandrounds.privacy.gate.kinds import Expected
from grandrounds.privacy.gate.policy import SitePolicy, Terms, policy_of_scope
from grandrounds.privacy.gate.questions import OpenTraining, SentAnswers
from grandrounds.privacy.gate.sums import KitJob
from grandrounds.privacy.gate.treatments import ClipAndNoiseSamples, Masked, MinimumSupport
from grandrounds.privacy.ledger.chain import note_head
from grandrounds.privacy.ledger.ledger import Ledger
from grandrounds.privacy.secure_sums.asked import AskedSum
from grandrounds.protocol.messages import (
    DXO_KEY,
    GLOBAL,
    JOIN,
    LEDGER_HEAD,
    REASON_HEADER,
    SUM,
    TEST,
    TRAIN,
    Payload,
    ReleaseKind,
    floating_entries,
    is_running_statistic,
    require_head,
)
from grandrounds.protocol.paths import PRIVACY_FOLDER, STATES, cache_folder, data_folders, in_kit, job_part
from grandrounds.protocol.plain import plain_message
from grandrounds.protocol.problem import Problem
from grandrounds.protocol.question import CHECKPOINTS, question_id
from grandrounds.protocol.refusal import Reason, Refusal
from grandrounds.protocol.spending import TRAINING_GATE, Spending
from grandrounds.protocol.tensors import FULL, UPDATE_PRECISION
from grandrounds.protocol.wire import (
    OtherProtocol,
    asks_for_models,
    decode_payload,
    executor_arguments,
    job_backbones,
    stated_problem,
)

PUBLIC = "public"
"""In a task's values: the data set whose images predictions are about."""
CODES = frozenset(value for name, value in vars(ReturnCode).items() if name.isupper())
_LOOK = 0.5
"""Seconds between two looks at whether the job is aborted."""


class LeavingTime:
    """When an answer leaves: at fixed times after its task came, so that it does not tell how long the work took.

    Args:
        interval: seconds between the times at which its answer may leave; None for at any time.
    """

    def __init__(self, interval: float | None = None) -> None:
        self._interval = interval
        self._came = time.monotonic()

    def wait(self, aborted: Callable[[], bool]) -> None:
        """Return at the next time at which the answer may leave, or when the job is aborted."""
        if self._interval is None:
            return
        leaves = time.monotonic() + self._interval - (time.monotonic() - self._came) % self._interval
        while (left := leaves - time.monotonic()) > 0 and not aborted():
            time.sleep(min(left, _LOOK))


@dataclass
class Admission:
    """The gate's decision about a task.

    Gate or facts are None if they could not be built or read; ``refusal`` is what the server gets if it is refused;
    ``training`` is the admitted record-level private training, ``begun`` the note of one that is not answered yet. ``reads``
    says whether the task has begun to read images, ``fault`` what has kept it from that; ``leaving`` is when its answer may
    leave, ``earlier`` what has left for the same task.
    """

    gate: Gate | None = None
    facts: TaskFacts | None = None
    refusal: str = ""
    training: Spending | None = None
    training_refused: Refused | None = None
    begun: OpenTraining | None = None
    reads: bool = False
    fault: Fault | None = None
    leaving: LeavingTime = field(default_factory=LeavingTime)
    earlier: bytes | None = None

    @property
    def is_answered(self) -> bool:
        """Whether the gate answers itself: a question about a secure sum, or what was asked and answered before."""
        return self.earlier is not None or (self.facts is not None and self.facts.task == SUM)

    def leaves(self, reply: Shareable) -> None:
        """The answer has passed all filters: keep it as it leaves, or put what has left before in its place."""
        if self.earlier is not None:
            reply.clear()
            reply.update(fobs.loads(self.earlier))
        elif self.gate is not None and self.facts is not None and self.facts.repeatable and not self.refusal:
            facts = self.facts
            answers = SentAnswers(self.gate.folder, facts.expected.run_id)
            with suppress(OSError):  # it is booked, and leaves; if it is lost it is booked again
                answers.keep(facts.question, facts.expected.round_number, fobs.dumps(reply), facts.checkpoints)

    @property
    def hides_failures(self) -> bool:
        """Whether a training that fails must give an answer like any other."""
        return self.gate is not None and self.facts is not None and self.gate.hides_failures(self.facts)

    @property
    def counts_updates(self) -> bool:
        """Whether a training must not fail visibly even if its model stays at the site."""
        return self.gate is not None and self.facts is not None and self.gate.counts_updates(self.facts)

    def admit_training(self, training: Spending | None) -> None:
        """Check a training before it starts, with its cost if it is record-level private; a refusal becomes the answer.

        Raises:
            Refused: if its result could not leave.
        """
        if self.gate is None or self.facts is None:
            raise Refused(Reason.FAILED, self.refusal or "the task was not admitted")
        try:
            if training is not None and not isinstance(training, Spending):
                raise Refused(Reason.FORM, f"the cost of a training is a {type(training).__name__}")
            self.gate.admit_training(self.facts, training)
            if training is not None:  # its own cost, in place of that of the round before
                begun = self.gate.begin(self.facts, training)
                self.answered()
                self.begun = begun
            self.training = training
            self.reads = self.reads or self.hides_failures
        except Refused as refused:
            self.training_refused = refused
            raise

    def require_releases(self, releases: Mapping[str, ReleaseKind]) -> None:
        """Check, before any work, that what a job declares may leave; a refusal becomes the answer.

        Raises:
            Refused: naming what may not, and the rules that would allow it.
        """
        refusal = self.gate.policy.refusal_of(releases) if self.gate is not None else None
        if refusal is not None:
            self.training_refused = Refused(Reason.DENIED, refusal.cause, refusal=refusal)
            raise self.training_refused

    def answered(self) -> None:
        """The training, if it is one, is over: what it has released is booked."""
        if self.begun is not None:
            self.begun.answered()

    def begin_reading(self) -> None:
        """The task reads images from now on, so that no fault of it is named to the server."""
        self.reads = True

    def note_failure(self, cause: str, fault: Fault) -> None:
        """Write why an admitted task has failed to the audit trail, which stays at the site."""
        self.fault = None if self.reads else fault
        if self.gate is None or self.refusal or self.training_refused:
            return  # the refusal has a line of its own
        with suppress(Refused):  # an answer that cannot be audited does not leave
            write_audit(self.gate.folder, FAILED, {**audit_fields(self.facts), "detail": cause})

    def note_missing_walls(self, missing: str) -> None:
        """Write to the audit trail that a job's training child lacks walls."""
        if self.gate is not None:
            write_audit(self.gate.folder, "unwalled", {**audit_fields(self.facts), "detail": missing})

    def row_noise(self, release: str) -> tuple[float, float] | None:
        """Bound on the norm and standard deviation of the noise of each row of a release; None if rows get no noise."""
        rule = self.gate.policy.named_rule(release) if self.gate else None
        treatment = rule.treatment if rule else None
        return (treatment.clip, treatment.sigma) if isinstance(treatment, ClipAndNoiseSamples) else None

    def release_minimum(self, kind: str, release: str) -> int | None:
        """Smallest number of cases behind a release's counts; None if the policy does not let it out."""
        policy = self.gate.policy if self.gate else None
        if policy is None:
            return None
        rule = policy.rule_for(ReleaseKind(kind), release)
        return rule.treatment.minimum if rule and isinstance(rule.treatment, MinimumSupport | Masked) else None


class SitePrivacyGate(Filter):
    """Releases what the site's policy names, treated by its rules, and nothing else. For ``local/privacy.json`` only."""

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """FLARE's hook for a task that comes in or an answer that goes out.

        Raises:
            ConfigurationError: if it is a filter of a job.
        """
        if self.get_prop(FilterContextKey.SOURCE) == FilterSource.JOB:
            raise ConfigurationError("SitePrivacyGate belongs in a site's privacy.json; jobs may use GaussianPrivacy")
        if self.get_prop(FilterContextKey.CHAIN_TYPE) == FilterChainType.TASK_DATA_CHAIN:
            return self._filter_task(shareable, fl_ctx)
        return self._filter_answer(shareable, fl_ctx)

    def _filter_task(self, task: Shareable, fl_ctx: FLContext) -> Shareable:
        admission = Admission()
        try:
            gate = admission.gate = _gate(fl_ctx)
            admission.leaving = LeavingTime(gate.policy.answer_interval)
            facts = admission.facts = _facts(task, fl_ctx, gate.policy, gate.ledger())
            if facts.repeatable:
                admission.earlier = SentAnswers(gate.folder, facts.expected.run_id).find(facts.question)
            if admission.earlier is None:
                gate.admit(facts)
                admission.begun = gate.begin(facts)
        except Exception as error:
            admission.refusal, admission.earlier = self._refuse(error, admission.facts, fl_ctx), None
        fl_ctx.set_prop(TRAINING_GATE, admission, private=True, sticky=False)
        return _emptied(task) if admission.refusal or admission.is_answered else task

    def _filter_answer(self, reply: Shareable, fl_ctx: FLContext) -> Shareable:
        admission = fl_ctx.get_prop(TRAINING_GATE)
        answer = self._treated(reply, admission, fl_ctx)
        if isinstance(admission, Admission):
            admission.answered()
            signal = fl_ctx.get_run_abort_signal()
            admission.leaving.wait(lambda: signal is not None and bool(signal.triggered))
        return answer

    def _treated(self, reply: Shareable, admission: object, fl_ctx: FLContext) -> Shareable:
        facts: TaskFacts | None = None
        try:
            if not isinstance(admission, Admission):
                raise Refused(Reason.UNSEEN, "the gate is not among the scope's task_data_filters")
            if admission.refusal or admission.gate is None or admission.facts is None:
                return _refusal(admission.refusal or Reason.FAILED)
            facts = admission.facts
            if admission.earlier is not None:
                write_audit(admission.gate.folder, "repeated", audit_fields(facts))
                return fobs.loads(admission.earlier)
            if admission.training_refused:
                raise admission.training_refused
            if facts.task == SUM:
                return _message(admission.gate.answer_sum(facts))
            reply = _copied(reply)
            code = reply.get_return_code()
            if not isinstance(code, str) or code != ReturnCode.OK:
                if admission.fault is not None and not admission.reads:
                    write_audit(admission.gate.folder, "stripped", {**audit_fields(facts), "fault": admission.fault})
                    return make_reply(ReturnCode.EXECUTION_EXCEPTION, headers={REASON_HEADER: admission.fault.value})
                return self._failed(code, facts, admission.gate, admission.training)
            return _message(admission.gate.release(facts, _answer(reply), admission.training))
        except Exception as error:
            return _refusal(self._refuse(error, facts, fl_ctx))

    def _failed(self, code: Any, facts: TaskFacts, gate: Gate, training: Spending | None) -> Shareable:
        if gate.hides_failures(facts):
            return _message(gate.release_failure(facts, "an error of the training"))
        if facts.task in SCORES or (facts.task == JOIN and gate.relies_on_noise):
            return _message(gate.scores_nothing(facts, "the task has failed; see the site's log"))
        gate.require_private(facts, training)
        if facts.task == TRAIN:
            gate.book_failure(facts, training)
            code = ReturnCode.EXECUTION_EXCEPTION
        known = code if isinstance(code, str) and code in CODES else ReturnCode.EXECUTION_EXCEPTION
        write_audit(gate.folder, "stripped", {**audit_fields(facts), "code": known})
        return make_reply(known)

    def _refuse(self, error: Exception, facts: TaskFacts | None, fl_ctx: FLContext) -> str:
        """Write a refusal to the audit trail, and return what the server gets. If that fails, still nothing leaves."""
        refused = error if isinstance(error, Refused) else Refused(Reason.FAILED, f"{type(error).__name__}: {error}")
        # The details are not logged: FLARE may send a site's log to the server.
        self.log_error(fl_ctx, f"nothing leaves: {refused.reason} (details in {AUDIT_NAME})", fire_event=False)
        task = {"job": str(fl_ctx.get_job_id()), "task": str(fl_ctx.get_prop(FLContextKey.TASK_NAME))}
        details = {"reason": refused.reason.value, "detail": refused.detail, **task, **audit_fields(facts)}
        try:
            add_job_audit_event(fl_ctx, msg=f"privacy gate refused: {refused.reason}")
            write_audit(_folder(fl_ctx), "refused", details)
        except Exception as failure:
            self.log_error(fl_ctx, f"the audit trail could not be written ({type(failure).__name__})", fire_event=False)
        return refused.sent


def _gate(fl_ctx: FLContext) -> Gate:
    scope = fl_ctx.get_prop(FLContextKey.SCOPE_OBJECT)
    where = f"scope {getattr(scope, 'name', None)!r}"
    leaving = getattr(scope, "task_result_filters", {}).get(FilterKey.OUT, [])
    if not any(isinstance(component, SitePrivacyGate) for component in leaving):
        raise Refused(
            Reason.POLICY, f"{where}: the gate is not among the task_result_filters, so it would not see the answers"
        )
    with refusing(Reason.POLICY, ConfigurationError):
        policy = policy_of_scope(getattr(scope, "props", None), where)
    return Gate(policy, _folder(fl_ctx), fl_ctx.get_identity_name(), lambda: _kit(fl_ctx))


def _kit(fl_ctx: FLContext) -> KitJob:
    workspace, job = fl_ctx.get_engine().get_workspace(), str(fl_ctx.get_job_id())
    return KitJob.read(Path(workspace.get_startup_kit_dir()), in_kit(fl_ctx), job, job_part(workspace, job, "client"))


def _folder(fl_ctx: FLContext) -> Path:
    return Path(fl_ctx.get_engine().get_workspace().get_site_config_dir()) / PRIVACY_FOLDER


def _facts(task: Shareable, fl_ctx: FLContext, policy: SitePolicy, ledger: Ledger) -> TaskFacts:
    payload = _payload(task)
    with refusing(Reason.FORM, GrandRoundsError, KeyError, TypeError, where="the task cannot be read"):
        values = payload.values
        problem = Problem.from_dict(values["problem"])
        run, run_id = values["run_name"], values["run_id"]
        head = require_head(values.get(LEDGER_HEAD))
    with suppress(OSError):  # for a person who inspects the site: no task depends on it
        note_head(Path(fl_ctx.get_engine().get_workspace().get_root_dir()) / STATES, head)
    with refusing(Reason.LEDGER, GrandRoundsError):
        ledger.content().chain.require_head(head)
    # A server can have a job's folder deleted while the job runs: what is compared with the signed job ends with it.
    stated, _ = stated_problem(fl_ctx) or ({"dataset": "nothing: it is gone" if in_kit(fl_ctx) else problem.dataset}, 0)
    if (signed := stated.get("dataset")) != problem.dataset:
        raise Refused(Reason.DATASET, f"the task is about {problem.dataset!r}, the signed job about {signed!r}")
    with refusing(Reason.DATASET, GrandRoundsError):
        about = _question(payload, problem.dataset, policy, fl_ctx)
        inventory = take_inventory(about, ledger, _folder(fl_ctx))
        data = inventory.datasets[problem.dataset]
        if policy.target_epsilon:
            ledger.content().require_own_images(problem.dataset, inventory.described)
    template = {name: (tuple(v.shape), v.dtype) for name, v in floating_entries(payload.parts.get(GLOBAL, {})).items()}
    name = str(fl_ctx.get_prop(FLContextKey.TASK_NAME))
    executors = executor_arguments(fl_ctx)
    expected = Expected(
        payload.round_number,
        run_id,
        len(problem.classes),
        template,
        data.patients,
        data.images,
        _largest(payload.parts.values()),
        inventory.public_rows,
        problem.kind,
        name == TEST and asks_for_models(executors),
        frozenset({problem.backbone, data.backbone, *job_backbones(executors)}),
    )
    question = question_id(name, payload, (data.identity, policy))
    terms, listed = _terms(payload, problem), payload.values.get(CHECKPOINTS)
    checkpoints = tuple(number for number in listed if type(number) is int) if isinstance(listed, list | tuple) else ()
    with refusing(Reason.FORM, GrandRoundsError):
        asked = AskedSum.of(name, payload, ChainMap(*(executors or {}).values()))
    return TaskFacts(str(fl_ctx.get_job_id()), name, run, data.identity, expected, terms, question, checkpoints, asked)


def _payload(task: Shareable) -> Payload:
    """What a task says; one of another version of the protocol is refused by name and for good."""
    try:
        return decode_payload(task)
    except OtherProtocol as error:
        raise Refused(Reason.PROTOCOL, str(error), refusal=Refusal(str(error))) from error
    except (GrandRoundsError, KeyError, TypeError) as error:
        raise Refused(Reason.FORM, f"the task cannot be read: {error}") from error


def _terms(payload: Payload, problem: Problem) -> Terms:
    """What the task asks of the answer."""
    precision = payload.values.get(UPDATE_PRECISION, FULL)
    # Weights in whole numbers are weights: a network takes them as they are.
    return Terms(GLOBAL in payload.parts, precision, any(payload.parts.values()), problem.image_size)


def _question(payload: Payload, dataset: str, policy: SitePolicy, fl_ctx: FLContext) -> InventoryRequest:
    """What is asked about the site's data sets; all private ones where one budget is for each image."""
    public = payload.values.get(PUBLIC)
    if public is not None and not isinstance(public, str):
        raise ConfigurationError(f"the name of a public data set is a {type(public).__name__}")
    folders = tuple(map(str, data_folders(fl_ctx)))
    cache = str(cache_folder(fl_ctx))
    return InventoryRequest(fl_ctx.get_identity_name(), folders, cache, dataset, public, bool(policy.target_epsilon))


def _largest(parts: Collection[Mapping[str, torch.Tensor]]) -> float:
    """The largest absolute value of a weight of any type.

    Running statistics are variances of any size, and whole numbers beside a head's linear layer are bits (``DepthHead``).
    """
    bits = {name for part in parts for name in part if f"{name.rpartition('.')[0]}.linear.weight" in part}
    entries = (entry for part in parts for entry in part.items() if not is_running_statistic(entry[0]))
    weights = (value for name, value in entries if value.numel() and (value.dtype != torch.int32 or name not in bits))
    return max((float(abs(end.item())) for value in weights for end in value.aminmax()), default=0.0)


def _copied(reply: Shareable) -> Shareable:
    """The one reading of an answer: what is checked, treated and released is this copy."""
    if not isinstance(reply, Shareable):
        raise Refused(Reason.FORM, f"the reply is a {type(reply).__name__}")
    with refusing(Reason.FORM, MessageError):
        copy = plain_message(reply)
    if not isinstance(copy.get(ReservedHeaderKey.HEADERS, {}), dict):
        raise Refused(Reason.FORM, "the reply's headers are no dictionary")
    return copy


def _answer(reply: Shareable) -> Answer:
    """The reply as plain values; anything else that FLARE would send along is refused here."""
    unknown = reply.keys() - {DXO_KEY, ReservedHeaderKey.HEADERS}
    headers = reply.get(ReservedHeaderKey.HEADERS, {})
    strange = set(headers) - {ReservedHeaderKey.CONTENT_TYPE, ReservedHeaderKey.RC}
    if unknown or strange:
        raise Refused(
            Reason.FORM, f"the reply has the entries {sorted(map(str, unknown))}, headers {sorted(map(str, strange))}"
        )
    content_type = headers.get(ReservedHeaderKey.CONTENT_TYPE)
    if not isinstance(content_type, str) or not isinstance(reply.get(DXO_KEY), dict):
        raise Refused(Reason.FORM, "the reply has no data exchange object")
    with refusing(Reason.FORM, ValueError):
        dxo = from_shareable(reply)
    encoded = reply[DXO_KEY]
    if dxo.data_kind != DataKind.COLLECTION or encoded.keys() != {"kind", "data", "meta"}:
        raise Refused(
            Reason.FORM, f"the reply is {dxo.data_kind!r} with {sorted(map(str, encoded))}, expected a collection"
        )
    parts = {}
    for name, part in dxo.data.items():
        if type(part) is not DXO or not isinstance(part.data_kind, str):
            raise Refused(Reason.FORM, f"part {name!r} is a {type(part).__name__}")
        parts[name] = Part(str(DataKind(part.data_kind).value), part.meta or {}, part.data)
    return Answer(dxo.meta or {}, parts)


def _message(answer: Answer) -> Shareable:
    parts = {
        name: DXO(DataKind(part.kind), data=part.data, meta=dict(part.meta)) for name, part in answer.parts.items()
    }
    return DXO(DataKind.COLLECTION, data=parts, meta=dict(answer.header)).to_shareable()


def _emptied(task: Shareable) -> Shareable:
    """The task without its content, so that no executor can work on it.

    FLARE reads the task's id for the reply from its cookies, after the filters.
    """
    empty = Shareable()
    empty.set_cookie_jar(task.get_cookie_jar())
    return empty


def _refusal(reason: str) -> Shareable:
    return make_reply(ReturnCode.TASK_RESULT_FILTER_ERROR, headers={REASON_HEADER: str(reason)})
