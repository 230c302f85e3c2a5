"""FedIRM of which the server sees sums of updates and of relation matrices alone."""

import pytest
import torch

from grandrounds.errors import ConfigurationError, GrandRoundsError
from grandrounds.federation.server.record import read_events
from tests.federations import Federation, draw_hospitals

SITES = ["site-1", "site-2", "site-3", "site-4"]
LABELLED = {**dict.fromkeys(SITES, 1.0), "site-4": 0.0}
SECURE = "controller.aggregation=secure"
QUICK = ("controller.rounds=3", "executor.steps=2", "controller.validate_every=0")


@pytest.fixture(scope="module")
def go(tmp_path_factory, shared_cache):
    return Federation(
        "fedirm", SITES, draw_hospitals(tmp_path_factory.mktemp("hospitals"), SITES, labelled=LABELLED), QUICK
    )


def relation_events(found):
    return [event for event in read_events(found.results) if event["event"] == "relation"]


@pytest.mark.parametrize(
    "options", [[], ["controller.weighting=samples", "controller.labelled_weight=3"]], ids=["uniform", "weighted"]
)
def test_model_and_matrix_are_those_of_plain_averaging_as_far_as_sums_are_rounded(go, tmp_path, options):
    plain, secure = (go(tmp_path / name, *options, *more) for name, more in (("plain", ()), ("secure", (SECURE,))))
    values = [
        torch.cat([v.flatten() for v in found.models["last"].values() if v.is_floating_point()])
        for found in (plain, secure)
    ]
    # Adam divides by the gradient's own size: where that is near 0, a rounded sum may turn a step round.
    different = (values[0] - values[1]).abs()
    assert (different > 1e-5).double().mean() < 5e-3
    assert different.max() < 1e-3
    for one, two in zip(relation_events(secure), relation_events(plain), strict=True):
        assert one["support"] == two["support"]
        torch.testing.assert_close(torch.tensor(one["matrix"]), torch.tensor(two["matrix"]), atol=2e-6, rtol=0)
    assert any(max(event["support"]) == 3 for event in relation_events(secure))


def test_the_server_cannot_ask_for_rows_of_more_patients_than_sites_do(go, tmp_path):
    with pytest.raises(GrandRoundsError, match=r"raise executor\.min_support from 2 to 10"):
        go(tmp_path / "lower", SECURE, "controller.min_support=10")
    alike = go(tmp_path / "alike", SECURE, "controller.min_support=10", "executor.min_support=10")
    assert alike.summary["status"] == "finished"


def test_the_server_has_no_matrix_of_a_site(go, tmp_path):
    found = go(tmp_path, SECURE, "executor.release_relation=true")
    assert all(event["sites"] == [] and event["pseudo_relations"] == {} for event in relation_events(found))
    answers = [event for event in read_events(found.results) if event["event"] == "answer"]
    assert {part["kind"] for event in answers for part in event.get("released", {}).values()} == {"masked_sum"}
    rounds = [
        event["contributors"] for event in read_events(found.results) if event.get("quantity", "").startswith("update")
    ]
    assert rounds == [SITES[:3], SITES, SITES]


RULES = [{"kind": "model_update", "name": "update", "treatment": "masked"}]
LABELS = [{"name": "labelled", "part": "train", "minimum_support": 2}]


@pytest.mark.parametrize("minimum", [2, 1000])
def test_a_gate_adds_no_row_of_fewer_patients_than_its_policy_asks(go, tmp_path, masking, minimum):
    relation = {"kind": "class_statistics", "name": "relation", "treatment": "masked", "minimum": minimum}
    masking(tmp_path, SITES, [*RULES, relation], scalars=LABELS)
    found = go(tmp_path, SECURE)
    assert {max(event["support"]) for event in relation_events(found)} == {3 if minimum == 2 else 0}


def test_two_sites_with_labels_are_refused_before_the_first_round(go, tmp_path):
    folder = draw_hospitals(tmp_path / "sites", SITES, labelled={**LABELLED, "site-3": 0.0})
    with pytest.raises(GrandRoundsError, match=r"3 or more sites with labels, and 2 have some \(site-1, site-2\)"):
        go(tmp_path, SECURE, folder=folder)


def test_a_factor_of_labelled_sites_needs_weights(go):
    with pytest.raises(ConfigurationError, match="weighting=samples"):
        go.job(SECURE, "controller.labelled_weight=2", "controller.weighting=uniform").checked()
