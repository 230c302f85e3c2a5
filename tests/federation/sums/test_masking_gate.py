"""A gate whose policy masks updates lets nothing plain out, whatever the job asks for and whatever is lost."""

import json
import random
import re
from contextlib import suppress
from functools import reduce
from types import SimpleNamespace

import pytest
import torch
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import make_reply

from grandrounds.errors import GrandRoundsError
from grandrounds.federation.engine import Site
from grandrounds.federation.server.record import read_events
from grandrounds.federation.server.sums import SumService
from grandrounds.privacy.gate.audit import Reason
from grandrounds.privacy.ledger.ledger import Ledger
from grandrounds.privacy.secure_sums.asked import AskedSum
from grandrounds.privacy.secure_sums.numbers import add
from grandrounds.privacy.secure_sums.opening import opened_numbers
from grandrounds.privacy.secure_sums.summands import summed_words
from grandrounds.protocol.messages import SUM

SECURE = "controller.aggregation=secure"
SITES = [f"site-{number}" for number in range(1, 5)]


def sums(workspace):
    """The events of sums of updates."""
    events = [event for event in read_events(workspace / "results") if event["event"] == "sum"]
    return [event for event in events if event["quantity"].startswith("update ")]


def trail(workspace, site):
    path = workspace / "flare" / site / "local" / "privacy" / "audit.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_masked_by_gates_the_sum_is_that_of_a_simulation(run, tiny, tmp_path, masking, identical):
    job = tiny("fedavg", SECURE, "controller.rounds=2", "controller.validate_every=0")
    masking(tmp_path / "gated", SITES)
    gated = run(job, tmp_path / "gated", sites=SITES)
    assert identical(gated.models, run(job, tmp_path / "plain", sites=SITES).models)
    assert [event["contributors"] for event in sums(tmp_path / "gated")] == [SITES, SITES]
    notes = Ledger(tmp_path / "gated" / "flare" / "site-1" / "local" / "privacy", "site-1").content().notes
    assert [what for what in notes if what.startswith("contributors of update")]
    assert {line["outcome"] for line in trail(tmp_path / "gated", "site-1")} == {"released", "sum"}


def test_what_a_policy_masks_does_not_leave_alone(run, tiny, tmp_path, masking):
    """Neither the job nor its executor need to know of masks."""
    masking(tmp_path, SITES)
    with pytest.raises(GrandRoundsError, match=Reason.SUM):
        run(tiny("fedavg", "controller.aggregation=mean"), tmp_path, sites=SITES)


def test_a_job_that_filters_answers_adds_nothing(run, tiny, tmp_path, masking):
    masking(tmp_path, SITES)
    job = tiny("fedavg", SECURE)
    filters = [{"path": "grandrounds.federation.job_noise.GaussianPrivacy", "args": {"clip": 1, "noise_multiplier": 1}}]
    job.client["task_result_filters"].append({"tasks": ["train"], "filters": filters})
    with pytest.raises(GrandRoundsError, match=Reason.SUM_FILTERS):
        run(job, tmp_path, sites=SITES)
    assert {line.get("reason") for line in trail(tmp_path, "site-1")} == {Reason.SUM_FILTERS}


def test_plain_sites_join_a_sum_that_a_policy_asks_for(run, tiny, tmp_path, masking):
    masking(tmp_path, SITES[:3])
    masking(tmp_path, SITES[3:], {"kind": "model_update", "name": "update", "treatment": "unmodified"})
    run(tiny("fedavg", SECURE, "controller.rounds=1"), tmp_path, sites=SITES)
    assert [event["contributors"] for event in sums(tmp_path)] == [SITES]
    released = [line for line in trail(tmp_path, "site-4") if line.get("task") == "train"]
    assert released[0]["outcome"] == "released"


@pytest.fixture
def losing(monkeypatch):
    """Sites that do not answer some of their tasks."""
    work = Site.work

    def give(loses):
        def answered(self, task, message, server):
            phase = message["DXO"]["meta"]["values"].get(SUM, {}).get("phase", "")
            if loses(self.party.name, task, phase):
                return make_reply(ReturnCode.EXECUTION_EXCEPTION)
            return work(self, task, message, server)

        monkeypatch.setattr(Site, "work", answered)

    return give


@pytest.mark.parametrize("phase", ["shares", "input", "contributors", "unmask"])
@pytest.mark.parametrize("gated", [False, True], ids=["simulated", "gated"])
def test_a_site_lost_in_any_phase_costs_this_sum_at_most(run, tiny, tmp_path, masking, losing, phase, gated):
    if gated:
        masking(tmp_path, SITES)
    lost = []

    def loses(site, task, now):
        gone = site == "site-2" and now == phase and not lost
        lost.extend([site] if gone else [])
        return gone

    losing(loses)
    found = run(tiny("fedavg", SECURE, "controller.rounds=2"), tmp_path, sites=SITES)
    assert found.summary["status"] == "finished"
    first, second = sums(tmp_path)
    assert "lost" not in second
    assert first["contributors"] == [site for site in SITES if site != "site-2" or phase in ("contributors", "unmask")]


@pytest.mark.parametrize("seed", range(10))
def test_random_losses_in_all_phases_open_the_exact_sum_of_enough_sites_or_none(
    run, tiny, tmp_path, losing, monkeypatch, seed
):
    chance, words, opened = random.Random(seed), {}, []
    close, mask = SumService.close, AskedSum.masked

    def masked(self, party, releases, *rest):
        words[self.task.roster.digest, party._site] = summed_words(releases, 1, self.terms)[0]
        return mask(self, party, releases, *rest)

    def closed(self, following=""):
        attempt = self._open
        found = close(self, following)
        opened.extend([(attempt, found)] if found and "update" in found.releases else [])
        return found

    monkeypatch.setattr(AskedSum, "masked", masked)
    monkeypatch.setattr(SumService, "close", closed)
    losing(lambda site, task, phase: phase not in ("", "join") and chance.random() < 0.06)
    with suppress(GrandRoundsError):  # too few sites are left for a round
        run(tiny("fedavg", SECURE, "controller.rounds=4", "controller.min_sites=1"), tmp_path, sites=SITES)
    for attempt, found in opened:
        assert len(found.contributors) >= 3
        total = reduce(add, (words[attempt.roster.digest, site] for site in found.contributors))
        expected, _ = opened_numbers(total, attempt.kinds, len(found.contributors), attempt.terms)
        assert all(torch.equal(found.releases["update"][name], value) for name, value in expected["update"].items())


@pytest.mark.parametrize(
    ("certified", "pinned", "said"),
    [
        ([True, True, True], [True, True, True], []),
        ([True, True, True], [True, False, False], ["curious server only: .* at site-2, site-3$"]),
        ([True, False, True], [True, True, True], ["arithmetic, not privacy"]),
    ],
    ids=["pinned by all", "not pinned at two", "no key of its own"],
)
def test_the_record_says_against_whom_sums_protect(certified, pinned, said):
    remarks = []
    service = SumService(SimpleNamespace(record=SimpleNamespace(remark=remarks.append)))
    for number, (has_key, has_pins) in enumerate(zip(certified, pinned, strict=True), 1):
        service._joins[f"site-{number}"] = SimpleNamespace(certificate=b"key" if has_key else b"")
        service._pinned[f"site-{number}"] = has_pins
    service.remark()
    assert len(remarks) == len(said)
    assert all(re.search(words, remark) for words, remark in zip(said, remarks, strict=True))
