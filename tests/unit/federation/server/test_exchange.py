"""Every wait ends: on answers, on the deadline, on the grace time, or because the run is aborted."""

import heapq
import itertools
import re
import threading
import time
from types import SimpleNamespace

import pytest
import torch
from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask, TaskCompletionStatus
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import make_reply
from nvflare.apis.signal import Signal

from grandrounds.errors import Fault, GrandRoundsError, MessageError
from grandrounds.federation.server import exchange
from grandrounds.federation.server.exchange import (
    EXCHANGE_POLL_SECONDS,
    Assignment,
    Exchange,
    ReplyOutcome,
    RunAborted,
    SignsOfLife,
)
from grandrounds.protocol.messages import REASON_HEADER, Payload, ReleaseKind, Result, model_update
from grandrounds.protocol.refusal import Refusal, RefusedBySites
from grandrounds.protocol.wire import decode_payload, encode_result

NEVER = None
RUN = {"run_name": "trial", "run_id": "r1"}


def good_answer(_site):
    result = Result(model_update({"w": torch.ones(1)}), samples=3)
    return encode_result(result, {"update": ReleaseKind.MODEL_UPDATE}, Payload(3, RUN))


class Clock:
    """The exchange's time and its condition: time passes while it waits, and what is due happens meanwhile."""

    def __init__(self):
        self.now, self._due, self._told, self._numbers = 0.0, [], False, itertools.count()

    def monotonic(self):
        return self.now

    def later(self, seconds, act, *arguments):
        heapq.heappush(self._due, (self.now + seconds, next(self._numbers), act, arguments))

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def notify_all(self):
        self._told = True

    def wait(self, seconds):
        end, self._told = self.now + seconds, False
        while self._due and self._due[0][0] <= end and not self._told:
            self.now, _, act, arguments = heapq.heappop(self._due)
            act(*arguments)
        if not self._told:
            self.now = end


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(exchange, "time", made)
    monkeypatch.setattr(exchange, "threading", SimpleNamespace(Condition=lambda: made))
    return made


class FakeController:
    """Answers each task after a delay per site; ``NEVER`` gives no answer."""

    def __init__(self, delays, answer=good_answer):
        self.delays = delays
        self.answer = answer
        self.sent = {}
        self.cancelled = []
        self.logged = []
        self.client_tasks = []

    def send(self, task, fl_ctx, targets, send_order):
        (site,) = targets
        self.sent[site] = task
        if self.delays[site] is not NEVER:
            exchange.time.later(self.delays[site], self.deliver, site)

    def log_error(self, fl_ctx, text):
        self.logged.append(text)

    def cancel_task(self, task):
        self.cancelled += [site for site, sent in self.sent.items() if sent is task]
        task.completion_status = TaskCompletionStatus.CANCELLED

    def deliver(self, site):
        client_task = ClientTask(client=Client(site, site), task=self.sent[site])
        client_task.result = self.answer(site)
        self.client_tasks.append(client_task)
        self.sent[site].result_received_cb(client_task=client_task, fl_ctx=FLContext())


def ask(controller, *, timeout=5.0, grace=None, enough=1, abort=None, on_result=None, counted=None, signs=None):
    came = []
    asked = Exchange(controller, FLContext(), timeout, grace, on_result or (lambda *answer: came.append(answer)), signs)
    assignments = {site: Assignment("train", Payload(3, {**RUN, "for": site})) for site in controller.delays}
    outcome = asked.run(assignments, enough, abort or Signal(), counted)
    return SimpleNamespace(outcome=outcome, came=came, seconds=exchange.time.monotonic())


def test_each_site_gets_its_own_payload_and_all_answers_are_handed_over():
    controller = FakeController({"a": 0.02, "b": 0.0})
    done = ask(controller)
    assert {site: decode_payload(task.data).values["for"] for site, task in controller.sent.items()} == {
        "a": "a",
        "b": "b",
    }
    assert sorted(done.outcome.answered) == ["a", "b"]
    assert done.outcome.dropped == {}
    assert [(site, task, result.samples) for site, task, result in done.came] == [("b", "train", 3), ("a", "train", 3)]
    assert done.seconds == 0.02


@pytest.mark.parametrize("long", [True, False])
@pytest.mark.parametrize("entry", [("meta", "protocol"), ("meta", "samples"), ("", "kind"), ("meta", "run_id")])
def test_why_an_answer_cannot_be_used_is_one_short_line_whatever_is_in_it(entry, long):
    """The reason goes to the record, the log, the report and a terminal, and the answer is the site's."""

    def spoilt(site):
        answer = good_answer(site)
        place, name = entry
        inside = answer["DXO"][place] if place else answer["DXO"]
        inside[name] = "x" * 2**20 if long else "\x1b[2J\n\u202e"
        return answer

    reason = ask(FakeController({"a": 0.0}, spoilt)).outcome.dropped["a"]
    assert 0 < len(reason) <= exchange.MAX_REASON_LENGTH
    assert reason.isprintable()


def test_answers_come_from_threads_and_are_handed_over_one_at_a_time(monkeypatch):
    monkeypatch.undo()
    at_once = lambda _, act, site: threading.Thread(target=act, args=[site]).start()  # noqa: E731
    monkeypatch.setattr(exchange, "time", SimpleNamespace(monotonic=time.monotonic, later=at_once))
    busy = threading.Lock()

    def alone(site, task, result):
        assert busy.acquire(blocking=False)
        time.sleep(0.001)
        busy.release()

    sites = {f"site-{number}": 0.0 for number in range(8)}
    outcome = ask(FakeController(sites), timeout=30, on_result=alone).outcome
    assert (sorted(outcome.answered), outcome.dropped) == (sorted(sites), {})


@pytest.mark.parametrize(
    ("kit", "tasks", "seconds"),
    [
        (True, ["train", "validate"], 2.0),
        (True, ["sum", "sum"], 0.2),
        (True, ["validate"] * 40, 0.5),
        (True, ["train"] * 30, 4.5),
        (False, ["train"], 0.05),
    ],
)
def test_waiting_sites_of_kits_ask_rarely_while_others_train_and_often_while_a_sum_is_open(
    monkeypatch, kit, tasks, seconds
):
    monkeypatch.setattr(exchange, "in_kit", lambda _: kit)
    runner, context = SimpleNamespace(config=SimpleNamespace(task_request_interval=0.05)), FLContext()
    context.set_prop(FLContextKey.RUNNER, runner, private=True, sticky=False)
    sites = {f"site-{number}": 0.0 for number in range(len(tasks))}
    asked = Exchange(FakeController(sites), context, 5.0, None, lambda *_: None)
    asked.run({site: Assignment(task, Payload(3, RUN)) for site, task in zip(sites, tasks, strict=True)}, 1, Signal())
    assert runner.config.task_request_interval == seconds


def test_the_longer_sites_of_kits_have_waited_the_rarer_they_ask_until_the_round_ends(monkeypatch, clock):
    monkeypatch.setattr(exchange, "in_kit", lambda _: True)
    runner, context = SimpleNamespace(config=SimpleNamespace(task_request_interval=0.05)), FLContext()
    context.set_prop(FLContextKey.RUNNER, runner, private=True, sticky=False)
    seen = {}
    for second in (10, 60, 200, 399):
        clock.later(second, lambda second=second: seen.update({second: runner.config.task_request_interval}))
    asked = Exchange(FakeController({"a": 0.0, "b": 400.0}), context, 500.0, None, lambda *_: None)
    asked.run({site: Assignment("train", Payload(3, RUN)) for site in "ab"}, 2, Signal())
    assert seen == {10: 2.0, 60: pytest.approx(6, abs=0.1), 200: 8.0, 399: 8.0}
    assert runner.config.task_request_interval == 2.0, "the next task is not waited for as long"


def test_the_deadline_drops_and_names_who_has_not_answered():
    controller = FakeController({"a": 0.0, "b": NEVER})
    done = ask(controller, timeout=0.3)
    assert done.outcome.answered == ["a"]
    assert done.outcome.dropped == {"b": "no answer within 0.3 s"}
    assert controller.cancelled == ["b"]
    assert 0.3 <= done.seconds <= 0.3 + EXCHANGE_POLL_SECONDS


def test_the_deadline_ends_the_round_without_any_answer():
    done = ask(FakeController({"a": NEVER}), timeout=0.2)
    assert done.outcome.answered == []
    assert list(done.outcome.dropped) == ["a"]


def test_after_enough_answers_stragglers_get_the_grace_time():
    controller = FakeController({"a": 0.0, "b": 0.0, "quick": 0.3, "slow": NEVER})
    done = ask(controller, timeout=30, grace=0.6, enough=2)
    assert sorted(done.outcome.answered) == ["a", "b", "quick"]
    assert done.outcome.dropped == {"slow": "no answer within 0.6 s after 2 sites had answered"}
    assert 0.6 <= done.seconds <= 0.6 + EXCHANGE_POLL_SECONDS


def test_the_grace_time_does_not_begin_before_there_are_enough():
    done = ask(FakeController({"a": 0.0, "b": NEVER}), timeout=0.5, grace=0.0, enough=2)
    assert done.outcome.dropped == {"b": "no answer within 0.5 s"}


def test_only_the_answers_that_count_begin_the_grace_time():
    """``scores`` is quick, and must not end the wait for ``trains``."""
    done = ask(FakeController({"scores": 0.0, "trains": 0.6}), timeout=30, grace=0.1, enough=1, counted=["trains"])
    assert sorted(done.outcome.answered) == ["scores", "trains"]


class Communicator:
    """Plays FLARE's, which is told of heartbeats."""

    def __init__(self):
        self.told = []

    def client_is_active(self, client_name, reason, fl_ctx):
        self.told.append((client_name, reason))


def signs_of(site, clock):
    """Lets a site send heartbeats for 1.4 s: its communicator, and the signs."""
    communicator = Communicator()
    signs = SignsOfLife(communicator)
    for beat in range(15):
        clock.later(beat / 10, communicator.client_is_active, site, "jobHeartbeat", None)
    return communicator, signs


def test_a_site_with_signs_of_life_is_waited_for_and_a_quiet_one_is_dropped(clock):
    communicator, signs = signs_of("alive", clock)
    controller = FakeController({"a": 0.0, "alive": 1.5, "dead": NEVER})
    done = ask(controller, timeout=30, grace=0.5, enough=1, signs=signs)
    assert sorted(done.outcome.answered) == ["a", "alive"]
    assert done.outcome.dropped == {"dead": "no sign of life for 0.5 s, and 1 sites had answered"}
    assert done.outcome.silent == ["dead"]
    assert communicator.told == [("alive", "jobHeartbeat")] * 15


def test_a_site_that_is_alive_is_waited_for_until_the_timeout(clock):
    _, signs = signs_of("b", clock)
    done = ask(FakeController({"a": 0.0, "b": NEVER}), timeout=1, grace=0.3, signs=signs)
    assert done.outcome.dropped == {"b": "no answer within 1 s"}


def test_without_a_grace_time_all_are_awaited():
    done = ask(FakeController({"a": 0.0, "b": 0.4}), timeout=30, grace=None, enough=1)
    assert sorted(done.outcome.answered) == ["a", "b"]


def test_an_abort_ends_the_wait_and_cancels_what_is_open(clock):
    controller, signal = FakeController({"a": 0.0, "b": NEVER}), Signal()
    clock.later(0.1, signal.trigger, True)
    with pytest.raises(RunAborted):
        ask(controller, timeout=30, abort=signal)
    assert controller.cancelled == ["b"]


def test_after_an_abort_no_other_site_is_asked():
    controller, signal = FakeController({"a": NEVER, "b": NEVER, "c": NEVER}), Signal()
    signal.trigger(True)
    with pytest.raises(RunAborted):
        ask(controller, abort=signal)
    assert list(controller.sent) == ["a"]


def test_an_answer_after_the_end_is_not_used(clock):
    controller = FakeController({"a": 0.0, "late": 0.6})
    done = ask(controller, timeout=0.2)
    clock.wait(1)
    assert len(controller.client_tasks) == 2
    assert [site for site, _, _ in done.came] == ["a"]
    assert done.outcome.answered == ["a"]
    assert list(done.outcome.dropped) == ["late"]


def test_a_second_answer_of_a_site_is_not_used(clock):
    controller = FakeController({"a": 0.0, "b": 0.3})
    came = []

    def twice(site, task, result):
        came.append(site)

    clock.later(0.1, controller.deliver, "a")
    done = ask(controller, on_result=twice)
    assert came == ["a", "b"]
    assert sorted(done.outcome.answered) == ["a", "b"]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (make_reply(ReturnCode.EXECUTION_EXCEPTION), "the site replied EXECUTION_EXCEPTION"),
        (make_reply(ReturnCode.EXECUTION_EXCEPTION, headers={REASON_HEADER: "no images"}), "no images"),
        (make_reply(ReturnCode.OK), "the message holds no data exchange object.*"),
    ],
)
def test_a_bad_answer_drops_the_site_with_the_reason(answer, reason):
    done = ask(FakeController({"a": 0.0, "b": 0.0}, lambda site: answer if site == "a" else good_answer(site)))
    assert done.outcome.answered == ["b"]
    assert list(done.outcome.dropped) == ["a"]
    assert re.fullmatch(reason, done.outcome.dropped["a"])


def test_an_answer_that_the_method_refuses_drops_the_site():
    def refuse(site, task, result):
        if site == "a":
            raise MessageError("another architecture")

    done = ask(FakeController({"a": 0.0, "b": 0.0}), on_result=refuse)
    assert done.outcome.answered == ["b"]
    assert done.outcome.dropped == {"a": "another architecture"}


def test_an_answer_that_trips_the_method_drops_its_site_only():
    def broken(site, task, result):
        if site == "a":
            raise ZeroDivisionError("rows sum\x1b[2J to zero" + "o" * 10**6)

    controller = FakeController({"a": 0.0, "b": 0.05})
    done = ask(controller, on_result=broken)
    assert done.outcome.answered == ["b"]
    assert done.outcome.dropped["a"].startswith("its answer cannot be used (ZeroDivisionError: rows sum [2J to zeroo")
    (logged,) = controller.logged
    assert "in broken" in logged, "where it was"
    assert "\x1b" not in logged
    assert len(logged) < 10**4, "whatever a site sends is bounded in the log, too"


def test_a_task_that_flare_closes_drops_the_site(clock):
    controller = FakeController({"a": 0.0, "b": NEVER})

    def close():
        controller.sent["b"].completion_status = TaskCompletionStatus.CLIENT_DEAD

    clock.later(0.1, close)
    done = ask(controller, timeout=30)
    assert list(done.outcome.dropped) == ["b"]
    assert re.match("FLARE closed its task: .*DEAD", done.outcome.dropped["b"], re.IGNORECASE)


def test_flare_is_given_a_deadline_of_whole_seconds_not_below_ours():
    controller = FakeController({"a": 0.0})
    ask(controller, timeout=1.2)
    assert controller.sent["a"].timeout == 2


def test_the_answer_is_let_go_of_once_it_was_handed_over():
    controller = FakeController({"a": 0.0})
    ask(controller)
    assert controller.client_tasks[0].result is None


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        (b"bytes", "the site replied EXECUTION_EXCEPTION"),
        ("two\nlines\x1b[31m", "two lines [31m"),
        ("x" * 900, "x" * 500),
    ],
)
def test_a_reason_from_the_wire_is_one_printable_line(reason, shown):
    reply = make_reply(ReturnCode.EXECUTION_EXCEPTION, headers={REASON_HEADER: reason})
    done = ask(FakeController({"a": 0.0, "b": 0.0}, lambda site: reply if site == "a" else good_answer(site)))
    assert done.outcome.dropped == {"a": shown}


FULL_DISK = Fault.DISK.value
DENIED = str(Refusal("no rule lets sums out", "releases"))


@pytest.mark.parametrize(
    ("reason", "refused", "failed"), [(DENIED, ["a"], []), (FULL_DISK, ["a"], []), ("x", [], ["a"])]
)
def test_a_refusal_is_no_failed_training(reason, refused, failed):
    reply = make_reply(ReturnCode.EXECUTION_EXCEPTION, headers={REASON_HEADER: reason})
    done = ask(FakeController({"a": 0.0, "b": 0.0}, lambda site: reply if site == "a" else good_answer(site)))
    assert (list(done.outcome.refused), done.outcome.failed) == (refused, failed)


def test_refusals_end_a_run_where_the_other_sites_are_too_few():
    refusals = {site: Refusal.read(DENIED) for site in ("a", "b")}
    outcome = ReplyOutcome(["c"], {site: "no rule" for site in refusals}, refused=refusals)
    with pytest.raises(RefusedBySites, match=r"2 of 3 sites refuse.*a: no rule lets sums out; b: "):
        outcome.require(2, ["a", "b", "c"], 1)
    assert outcome.require(1, ["a", "b", "c"], 1) == ["c"]
    passing = ReplyOutcome(["c"], {"a": FULL_DISK}, refused={"a": Refusal.read(FULL_DISK)})
    with pytest.raises(GrandRoundsError) as error:
        passing.require(2, ["a", "c"], 1)
    assert not isinstance(error.value, RefusedBySites)
