"""Mutual learning of which the server sees sums of soft labels, and of own models' scores, alone."""

import csv
import json

import numpy as np
import pytest

from grandrounds.federation.server.record import read_events
from grandrounds.federation.server.sums import SumService
from grandrounds.methods.mutual.soft_labels import LARGEST_LOGIT
from grandrounds.privacy.secure_sums.summands import MOST_LOGIT
from tests.federations import Federation, draw_hospitals, give_public_images

SITES = ["site-1", "site-2", "site-3"]
SECURE = "controller.aggregation=secure"


@pytest.fixture(scope="module")
def go(tmp_path_factory, shared_cache):
    folder = draw_hospitals(tmp_path_factory.mktemp("hospitals"), SITES)
    for site in SITES:
        give_public_images(folder, site, 48)
    networks = dict(zip(SITES, ("small", "narrow", "wide"), strict=True))
    small = ["problem.image_size=16", f"executor.backbones={json.dumps(networks)}"]
    return Federation("mdhfl", SITES, folder, ["controller.rounds=3", *small])


def test_the_bound_of_sums_is_that_of_what_sites_publish():
    assert MOST_LOGIT == LARGEST_LOGIT


def probabilities(found, site):
    with (found.results / site / "predictions_own.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    return np.array([[float(row[name]) for name in row if name.startswith("probability_")] for row in rows])


@pytest.mark.parametrize(
    "options", [(), ("controller.content=logits", "executor.alignment=digest")], ids=["probabilities", "logits"]
)
def test_predictions_are_those_of_plain_sums_as_far_as_sums_are_rounded(go, tmp_path, options):
    plain, secure = go(tmp_path / "plain", *options), go(tmp_path / "secure", *options, SECURE)
    for site in SITES:
        assert np.abs(probabilities(plain, site) - probabilities(secure, site)).max() < 2e-4
    opened = [event for event in read_events(secure.results) if event.get("quantity", "").startswith("soft_labels")]
    assert [event["contributors"] for event in opened] == [SITES, SITES]
    notes = [entry["contributors"] for entry in secure.summary["rounds"] if "contributors" in entry]
    assert notes == [dict.fromkeys(SITES, number) for number in (1, 2)]


def test_the_server_has_soft_labels_and_scores_of_all_sites_alone(go, tmp_path):
    plain, secure = go(tmp_path / "plain"), go(tmp_path / "secure", SECURE)
    answers = [event for event in read_events(secure.results) if event["event"] == "answer"]
    assert {part["kind"] for event in answers for part in event.get("released", {}).values()} == {"masked_sum"}
    summed = secure.summary["summed"]["own"]
    assert summed["contributors"] == SITES
    assert secure.summary["records"] == {}
    assert plain.summary["summed"] == {}


def test_a_lost_sum_costs_this_exchange_alone(go, tmp_path, monkeypatch):
    close = SumService.close

    def lost(self, following=""):
        lost_now = self._open is not None and self._open.roster.quantity == "soft_labels 1"
        if lost_now:
            self._open.inputs.clear()
        return close(self, following)

    monkeypatch.setattr(SumService, "close", lost)
    found = go(tmp_path, SECURE)
    assert found.summary["status"] == "finished"
    assert ["contributors" in entry for entry in found.summary["rounds"]] == [False, True, False]
