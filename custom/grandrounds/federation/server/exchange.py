"""One task for each of several sites and their answers, with a deadline.

FLARE's ``broadcast`` gives every site the same payload, so each site gets a task of its own. A task's status is about its
delivery and not about the answer, so valid answers are counted here.
"""

from __future__ import annotations

import math
import threading
import time
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from nvflare.apis.controller_spec import ClientTask, SendOrder, Task
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.signal import Signal

from grandrounds.errors import GrandRoundsError
from grandrounds.protocol.messages import GLOBAL, REASON_HEADER, SCORED, TRAIN, Payload, Result, State
from grandrounds.protocol.paths import in_kit
from grandrounds.protocol.refusal import Refusal, RefusedBySites
from grandrounds.protocol.wire import decode_result, encode_payload

EXCHANGE_POLL_SECONDS, RAREST_SECONDS = 0.25, 8.0
NO_DEADLINES = "grandrounds_no_deadlines"
"""In the server's context where all parties are on one machine: a site that waits for its turn is not late."""
MAX_REASON_LENGTH = 500


class RunAborted(Exception):
    """FLARE's abort signal was triggered."""


class Assignment(NamedTuple):
    """A task for one site."""

    task: str
    payload: Payload


def training_assignments(payloads: Mapping[str, Payload], validate: bool, model: State | None) -> dict[str, Assignment]:
    """Training tasks, in which sites also score the model if that is due.

    Args:
        payloads: of each site.
        validate: whether sites score.
        model: what they score; it travels beside what they start from where that is another model.
    """
    tasks = {}
    for site, payload in payloads.items():
        other = {SCORED: model} if validate and model and payload.parts.get(GLOBAL) is not model else {}
        values, parts = {**payload.values, "validate": validate}, {**payload.parts, **other}
        tasks[site] = Assignment(TRAIN, Payload(payload.round_number, values, parts))
    return tasks


@dataclass
class ReplyOutcome:
    """Who answered, and why the others did not.

    Attributes:
        answered: sites with a valid answer.
        dropped: the others, each with the reason.
        failed: those of them that have replied that their task failed.
        refused: those of them that refuse the task, each with the refusal.
        silent: those of them that were dropped by time.
    """

    answered: list[str] = field(default_factory=list)
    dropped: dict[str, str] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)
    refused: dict[str, Refusal] = field(default_factory=dict)

    def require(self, needed: int, chosen: Sequence[str], round_number: int) -> list[str]:
        """The chosen sites that answered.

        Raises:
            GrandRoundsError: if they are fewer than ``needed``, with the reason of each that did not; a ``RefusedBySites``
                if so many refuse it for good that the others are too few.
        """
        trained = [site for site in chosen if site in self.answered]
        final = [site for site in chosen if site in self.refused and self.refused[site].final]
        if len(chosen) - len(final) < min(needed, len(chosen)):
            raise RefusedBySites(
                f"round {round_number}: {len(final)} of {len(chosen)} sites refuse it, and min_sites is {needed} "
                f"({'; '.join(f'{site}: {self.refused[site].cause}' for site in final)})"
            )
        if len(trained) < needed:
            reasons = "; ".join(f"{site}: {self.dropped.get(site)}" for site in chosen if site not in trained)
            raise GrandRoundsError(
                f"round {round_number}: {len(trained)} of {len(chosen)} sites gave a valid result, min_sites is "
                f"{needed} ({reasons}); fix the sites and submit the job again: it goes on after round "
                f"{round_number - 1}"
            )
        return trained


class SignsOfLife:
    """When each site was heard of last: its job's process sends heartbeats, every ten seconds, while it works.

    Args:
        communicator: FLARE's, which is notified of heartbeats and requests.
    """

    def __init__(self, communicator: Any) -> None:
        self._heard: dict[str, float] = {}
        self._told = communicator.client_is_active
        communicator.client_is_active = self._note

    def last(self, site: str) -> float:
        """The time of the last sign by the monotonic clock; minus infinity without any."""
        return self._heard.get(site, -math.inf)

    def _note(self, client_name: str, reason: str, fl_ctx: FLContext) -> None:
        self._heard[client_name] = time.monotonic()
        self._told(client_name, reason, fl_ctx)


def polling_seconds(tasks: Collection[str], sites: int, waited: float = 0.0) -> float:
    """Seconds between the questions of a waiting site of a kit for its next task.

    A question costs the server about 17 ms of CPU, and the line 5 kB: while sites train, waiting ones ask rarely, the rarer
    the more they are; while a sum is open its small tasks follow each other, and they ask often. The longer they have waited
    the rarer they ask, up to 8 s: FLARE wakes no site that waits, and kills one 10 s after it has asked a job to end.

    Args:
        tasks: that are under way.
        sites: of the run.
        waited: seconds since the tasks were sent.

    Example:
        >>> polling_seconds(["sum"], 10), polling_seconds(["train"], 30), polling_seconds(["train"], 30, waited=60)
        (0.2, 4.5, 6.0)
    """
    usual = max(2.0, 0.15 * sites) if TRAIN in tasks else min(0.5, max(0.2, 0.02 * sites))
    return min(RAREST_SECONDS, max(usual, waited / 10))


class Exchange:
    """Sends each site its assignment and hands over every valid answer as it arrives.

    Args:
        controller: sends the tasks.
        fl_ctx: FLARE's context of the controller.
        timeout: seconds until sites that have not answered are dropped; at least 1.
        grace: once ``enough`` sites have answered, seconds without a sign of life after which a site is dropped; None waits
            for all until the timeout.
        on_result: called with (site, task, result) for each valid answer, one at a time. It runs under FLARE's lock, so
            it must only accumulate. An exception from it drops the site.
        signs: of the sites; without them the grace time counts from the moment when enough have answered.
    """

    def __init__(
        self,
        controller: Controller,
        fl_ctx: FLContext,
        timeout: float,
        grace: float | None,
        on_result: Callable[[str, str, Result], None],
        signs: SignsOfLife | None = None,
    ) -> None:
        self._controller = controller
        self._fl_ctx = fl_ctx
        self._timeout = timeout
        self._patience = math.inf if fl_ctx.get_prop(NO_DEADLINES) else timeout
        self._grace = None if fl_ctx.get_prop(NO_DEADLINES) else grace
        self._on_result, self._signs = on_result, signs
        self._changed = threading.Condition()
        self._open: dict[str, Task] = {}
        self._asked: dict[str, Payload] = {}
        self._told: Any = None
        self._outcome = ReplyOutcome()

    def run(
        self,
        assignments: Mapping[str, Assignment],
        enough: int,
        abort_signal: Signal,
        counted: Collection[str] | None = None,
    ) -> ReplyOutcome:
        """Send all tasks and wait for the answers.

        Args:
            assignments: by site.
            enough: number of valid answers after which only ``grace`` is waited.
            abort_signal: FLARE's.
            counted: the sites whose answers count towards ``enough``; None for all.

        Raises:
            RunAborted: if FLARE aborts the job.
        """
        runner = self._fl_ctx.get_prop(FLContextKey.RUNNER)
        if runner is not None and in_kit(self._fl_ctx):
            self._told = runner.config
        self._polling = partial(polling_seconds, {one.task for one in assignments.values()}, len(assignments))
        self._pace(0.0)
        for site, (task, payload) in assignments.items():
            self._asked[site] = payload
            self._open[site] = Task(
                name=task,
                data=encode_payload(payload),
                timeout=math.ceil(self._timeout),
                result_received_cb=self._received,
            )
        for site, task_object in list(self._open.items()):
            self._controller.send(task_object, self._fl_ctx, targets=[site], send_order=SendOrder.ANY)
            if abort_signal.triggered:
                break
        self._wait(enough, assignments.keys() if counted is None else counted, abort_signal)
        self._pace(0.0)
        return self._outcome

    def _pace(self, waited: float) -> None:
        """Set what FLARE tells a site of a kit that asks and gets nothing."""
        if self._told is not None:
            self._told.task_request_interval = self._polling(waited)

    def _wait(self, enough: int, counted: Collection[str], abort_signal: Signal) -> None:
        started = time.monotonic()
        satisfied: float | None = None
        with self._changed:
            while self._open:
                now = time.monotonic()
                if abort_signal.triggered:
                    self._cancel(list(self._open), "the run was aborted")
                    raise RunAborted
                if satisfied is None and sum(site in counted for site in self._outcome.answered) >= enough:
                    satisfied = now
                if satisfied is not None and self._grace is not None:
                    self._cancel_quiet(now, started, satisfied, self._grace, enough)
                if now - started >= self._patience:
                    self._cancel(list(self._open), f"no answer within {self._timeout:g} s")
                self._drop_closed()
                self._pace(now - started)
                self._changed.wait(EXCHANGE_POLL_SECONDS if self._open else 0)

    def _cancel_quiet(self, now: float, started: float, satisfied: float, grace: float, enough: int) -> None:
        """Drop the sites whose grace time is over; one that shows signs of life is waited for until the timeout."""
        if self._signs is None:
            if now - satisfied >= grace:
                self._cancel(list(self._open), f"no answer within {grace:g} s after {enough} sites had answered")
            return
        quiet = [site for site in self._open if now - max(started, self._signs.last(site)) >= grace]
        self._cancel(quiet, f"no sign of life for {grace:g} s, and {enough} sites had answered")

    def _cancel(self, sites: Sequence[str], reason: str) -> None:
        for site in sites:
            self._controller.cancel_task(self._open[site])
            self._close_silent(site, reason)

    def _drop_closed(self) -> None:
        for site, task in list(self._open.items()):
            if task.completion_status is not None:
                self._close_silent(site, f"FLARE closed its task: {task.completion_status}")

    def _close_silent(self, site: str, reason: str) -> None:
        del self._open[site]
        self._outcome.dropped[site] = reason
        self._outcome.silent.append(site)

    def _received(self, client_task: ClientTask, fl_ctx: FLContext) -> None:
        site, task, message = client_task.client.name, client_task.task.name, client_task.result
        client_task.result = None  # FLARE keeps the task; its tensors must not live as long
        with self._changed:
            if self._open.pop(site, None) is None:
                return
            try:
                code = message.get_return_code()
                if code != ReturnCode.OK:
                    self._note_failed(site, code, _printable(message.get_header(REASON_HEADER)))
                else:
                    self._on_result(site, task, decode_result(message, self._asked[site]))
                    self._outcome.answered.append(site)
            except GrandRoundsError as error:
                self._outcome.dropped[site] = _printable(str(error))
            except Exception as error:
                # One site's answer, whatever is wrong with it, must not end the run of the others.
                reason = _printable(f"its answer cannot be used ({type(error).__name__}: {error})")
                where = "".join(traceback.format_tb(error.__traceback__))
                self._controller.log_error(fl_ctx, f"{site}: {reason}\n{where}")
                self._outcome.dropped[site] = reason
            self._changed.notify_all()

    def _note_failed(self, site: str, code: str, reason: str) -> None:
        """A refusal says nothing about the model that was sent, and a failure may."""
        refusal = Refusal.read(reason)
        if refusal is not None:
            self._outcome.refused[site] = refusal
        elif code == ReturnCode.EXECUTION_EXCEPTION:
            self._outcome.failed.append(site)
        self._outcome.dropped[site] = (refusal.cause if refusal else reason) or f"the site replied {code}"


def _printable(reason: object) -> str:
    """A site's reason as one line that can be stored and shown anywhere."""
    return "".join(c if c.isprintable() else " " for c in reason)[:MAX_REASON_LENGTH] if isinstance(reason, str) else ""
