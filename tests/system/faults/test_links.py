"""The link of a hospital is cut or bad: it is waited for, its answer is sent again, and nothing is booked twice."""

import json
import time

import pytest

from benchmarks.rehearsal.link import Quality, SlowLink
from grandrounds.deployment import local_federation
from grandrounds.federation.proxy import PROXY_VARIABLE
from grandrounds.privacy.ledger.ledger import Ledger
from grandrounds.protocol.messages import UPDATE

pytestmark = pytest.mark.faults
CUT_SECONDS = 60


@pytest.fixture
def link(federation, restart):
    """The hospital's only way to the server."""
    made = SlowLink(federation.kit(federation.server).port, connect=True)
    made.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_federation, "OUTSIDE_VARIABLES", ())  # which keep a proxy from its participants
        restart("hospital-c", **{PROXY_VARIABLE: made.address})
    yield made
    restart("hospital-c")
    made.stop()


def released(trail, name, number):
    """Whether the hospital has booked its answer to this round of a run, by its audit trail."""
    text = trail.read_text() if trail.is_file() else ""
    lines = (json.loads(line) for line in text.splitlines() if line.endswith("}"))
    return any(
        (line["outcome"], line.get("run"), line.get("task"), line.get("round")) == ("released", name, "train", number)
        for line in lines
    )


@pytest.mark.parametrize("moment", ["fetching", "booked", "arrived"])
def test_a_link_that_is_cut_for_a_minute_costs_no_round_and_no_booking(federation, run, link, moment):
    """It comes when a round begins, when the hospital has booked an answer and not sent it, or when that has arrived."""
    name, privacy = f"cut-{moment}", federation.kits / "hospital-c" / "local" / "privacy"
    run = run(name, "controller.rounds=8")
    run.ROUNDS = 8
    moments = {
        "fetching": lambda: any((e["event"], e.get("round")) == ("round_start", 3) for e in run.events()),
        "booked": lambda: released(privacy / "audit.jsonl", name, 3),
        "arrived": lambda: any(
            (e["event"], e.get("site"), e.get("round"), e.get("task")) == ("answer", run.VICTIM, 3, "train")
            for e in run.events()
        ),
    }
    run.wait_until(moments[moment])
    link.cut()
    time.sleep(CUT_SECONDS)
    link.mend()
    summary = run.end().summary
    assert summary["contributions"] == dict.fromkeys(run.HOSPITALS, run.ROUNDS)
    assert len(run.outcome.jobs) == 1
    bookings = Ledger(privacy, "hospital-c").content().bookings
    updates = [one.purpose for one in bookings if (one.purpose.run, one.purpose.release) == (name, UPDATE)]
    assert [one.round_number for one in updates] == list(range(1, run.ROUNDS + 1)), "no round is paid for twice"
    longest = max(entry["round_seconds"] for entry in summary["rounds"])
    assert CUT_SECONDS - 10 < longest < CUT_SECONDS + 60


@pytest.mark.parametrize(
    "quality",
    [Quality(1.2, 200), Quality(25, 200, loss=0.02), Quality(25, 20, jitter=400)],
    ids=["150 kB a second", "losses", "messages in another order"],
)
def test_a_bad_link_costs_time_and_no_round(run, link, quality):
    """From the second round on; a message that is late is overtaken by those of other connections."""
    run = run(f"bad-{quality.megabits:g}-{quality.jitter:g}")
    run.await_round(2)
    link.set(quality)
    summary = run.end().summary
    assert summary["contributions"] == dict.fromkeys(run.HOSPITALS, run.ROUNDS)
    assert len(run.outcome.jobs) == 1
    assert run.same_as_undisturbed()
