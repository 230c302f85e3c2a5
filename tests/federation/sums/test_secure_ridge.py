"""Ridge regression of which the server sees sums over all sites alone, in simulations without a gate."""

import csv
import json
import shutil

import numpy as np
import pytest
import torch

from grandrounds.data.partition.phantom_site import FINDINGS_NAME, phantom_site
from grandrounds.errors import ConfigurationError, GrandRoundsError
from grandrounds.evaluation.record import EvalRecord, pooled
from grandrounds.federation.server.record import read_events
from grandrounds.federation.server.sums import SumService
from grandrounds.methods.ridge.controller import RidgeController
from grandrounds.methods.ridge.executor import RidgeExecutor
from grandrounds.methods.ridge.leave import leave
from grandrounds.models.closed_form.sums import Sums
from grandrounds.protocol.problem import Problem
from grandrounds.reporting.external.prediction import PortableSums
from grandrounds.reporting.run import table_rows
from grandrounds.reporting.runs import read_models
from tests.federations import Federation, draw_hospitals

SITES = ["site-1", "site-2", "site-3", "site-4"]
IMAGES = dict(zip(SITES, (40, 60, 48, 56), strict=True))
LABELLED = {**dict.fromkeys(SITES, 1.0), "site-4": 0.0}
SECURE, VALIDATION = "controller.aggregation=secure", "controller.penalty_rule=validation"


@pytest.fixture(scope="module")
def run(tmp_path_factory, shared_cache):
    folder = tmp_path_factory.mktemp("hospitals")
    return Federation("ridge", SITES, draw_hospitals(folder, SITES, images=IMAGES, labelled=LABELLED))


@pytest.fixture(scope="module")
def plain(run, tmp_path_factory):
    return run(tmp_path_factory.mktemp("plain"), VALIDATION)


@pytest.fixture(scope="module")
def secure(run, tmp_path_factory):
    return run(tmp_path_factory.mktemp("secure"), SECURE)


def predictions(found):
    """Decision and probabilities of each test image."""
    known = {}
    for path in sorted(found.results.glob("*/predictions_common.csv")):
        with path.open() as stream:
            for row in csv.DictReader(stream):
                shares = [float(value) for name, value in row.items() if name.startswith("probability_")]
                known[path.parent.name, row["image"]] = row.get("predicted"), shares
    return known


def records_of(found):
    problem = Problem.from_dict(found.summary["configuration"]["problem"])
    records = {site: models["common"] for site, models in found.summary["records"].items()}
    read = {site: EvalRecord.from_json(problem.kind, problem.classes, record) for site, record in records.items()}
    return problem, read


def test_decisions_are_those_of_plain_sums_and_scores_equal_to_a_millionth(plain, secure):
    ours, theirs = predictions(secure), predictions(plain)
    assert ours.keys() == theirs.keys()
    assert len(ours) > 30
    for image, (decision, shares) in theirs.items():
        assert ours[image][0] == decision
        assert ours[image][1] == pytest.approx(shares, abs=1e-6)
    for number in range(3):
        assert secure.summary["rounds"][number]["ridge"] == plain.summary["rounds"][number]["ridge"]


def test_the_record_has_scores_of_all_images_and_none_of_a_site(plain, secure):
    problem, sites = records_of(plain)
    summed = secure.summary["summed"]["common"]
    found = EvalRecord.from_json(problem.kind, problem.classes, summed)
    expected = pooled(list(sites.values()))
    assert found.images == expected.images
    assert found.counts[0].images.tolist() == sum(counts.images for counts in expected.counts).tolist()
    assert found.exact["log_likelihood"] == pytest.approx(expected.exact["log_likelihood"], abs=1e-6)
    assert summed["contributors"] == SITES
    assert secure.summary["records"] == {}
    assert secure.summary["untested"] == []
    assert {"bounds on a site's images", "leaving", "scores of a site"} <= set(secure.summary["void"])
    assert plain.summary["void"] == []
    of_sites = [event["metrics"] for event in read_events(secure.results) if event["event"] == "answer"]
    assert not any(name.startswith(("validation.", "common.")) for metrics in of_sites for name in metrics)
    ours, theirs = secure.summary["selected"], plain.summary["selected"]
    assert ours["score"] == pytest.approx(theirs["score"], abs=1e-6)
    assert {name: ours[name] for name in ("round", "metric", "basis", "support")} == {
        name: theirs[name] for name in ("round", "metric", "basis", "support")
    }


def test_a_site_keeps_its_own_scores_at_home(plain, secure):
    _, sites = records_of(plain)
    for site, record in sites.items():
        own = json.loads((secure.record.parent / site / "scores.json").read_text())
        assert own["common"]["n"] == record.images
        for name in ("accuracy", "balanced_accuracy", "log_likelihood"):
            assert own["common"][name] == pytest.approx(record.exact[name], abs=1e-6)


def test_the_table_has_rows_of_what_is_known_alone(secure, plain):
    (shown,) = read_models(secure.results.parent)
    rows = {row.name: row for row in table_rows(shown)}
    assert not {"mean", *SITES} & rows.keys()
    both = {row.name: row for row in table_rows(read_models(plain.results.parent)[0])}
    assert rows["pooled"].images == both["pooled"].images
    assert rows["pooled"].scores["accuracy"].value == pytest.approx(both["pooled"].scores["accuracy"].value)


def test_a_row_of_another_model_stands_beside_all_images(secure, plain, tmp_path):
    """Of a simulation the row has scores of each site, of a federation those of the sum."""
    records = {site: models["common"] for site, models in plain.summary["records"].items()}
    summed = secure.summary["summed"]["common"]
    for entry in ({"told": "a", "records": records}, {"told": "a", "records": {}, "summed": summed}):
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        shutil.copytree(secure.results, tmp_path / "run" / "results")
        path = tmp_path / "run" / "results" / "summary.json"
        path.write_text(json.dumps({**secure.summary, "references": {"ridge": entry}}))
        rows = {row.name: row for row in table_rows(read_models(tmp_path / "run")[0])}
        assert rows["ridge"].scores["accuracy"].value == pytest.approx(rows["pooled"].scores["accuracy"].value)


def test_nobody_can_leave_and_the_sums_of_all_sites_can_be_exported(secure, plain, tmp_path, monkeypatch):
    with pytest.raises(ConfigurationError, match="secure sums"):
        leave(secure.record, ["site-2"], tmp_path / "out")
    monkeypatch.setattr("grandrounds.reporting.external.prediction.DEFAULT_SUM_PATIENTS", 1)
    monkeypatch.setattr("grandrounds.reporting.external.prediction._require_stated", lambda *of: None)
    ours, theirs = PortableSums.of_run(secure.record), PortableSums.of_run(plain.record)
    torch.testing.assert_close(ours.sums.targets, theirs.sums.targets, rtol=0, atol=1e-6)
    assert (ours.penalty, ours.class_weights) == (theirs.penalty, theirs.class_weights)


def test_a_run_that_is_resumed_gives_the_same_bits(run, secure, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(RidgeController, "_choose", lambda self: 1 / 0)
        with pytest.raises(Exception):  # noqa: B017 - whatever the engine makes of it
            run(tmp_path, SECURE)
    resumed = run(tmp_path, SECURE)
    for name, value in secure.models["selected"].items():
        assert torch.equal(resumed.models["selected"][name], value)


def test_a_site_that_counts_and_sends_no_sums_ends_the_run(run, tmp_path, monkeypatch):
    """Or the class weights would be of other images than the sums; also where the others are enough for a sum."""
    add_up = RidgeExecutor.site_sums

    def fails(self, payload, context, weights):
        if context.site == "site-2":
            raise GrandRoundsError("the disk is full")
        return add_up(self, payload, context, weights)

    monkeypatch.setattr(RidgeExecutor, "site_sums", fails)
    with pytest.raises(GrandRoundsError, match=r"site-2|lost"):
        run(tmp_path, SECURE)


def test_a_sum_that_cannot_be_of_images_is_refused(run, tmp_path, monkeypatch):
    add_up = RidgeExecutor.site_sums

    def inflated(self, payload, context, weights):
        sums, support, images = add_up(self, payload, context, weights)
        factor = 3 if context.site == "site-2" else 1
        return Sums(sums.products * factor, sums.targets * factor), support, images

    monkeypatch.setattr(RidgeExecutor, "site_sums", inflated)
    with pytest.raises(GrandRoundsError, match="counted"):
        run(tmp_path, SECURE)


def test_a_site_counts_for_as_many_images_as_the_job_allows(run, tmp_path, monkeypatch):
    found = run(tmp_path, SECURE, "executor.most_samples=10")
    assert sum(found.summary["rounds"][0]["ridge"]["class_counts"].values()) in range(28, 33)  # three with labels


def test_a_lost_sum_of_scores_costs_these_scores_alone(run, tmp_path, monkeypatch):
    close = SumService.close

    def lost(self, *following):
        opened = close(self, *following)
        return None if opened and "scores_common" in opened.releases else opened

    monkeypatch.setattr(SumService, "close", lost)
    found = run(tmp_path, SECURE)
    assert found.summary["status"] == "finished"
    assert found.summary["summed"] == found.summary["records"] == {}
    assert found.summary["untested"] == SITES


def test_what_needs_single_sites_is_refused_by_name_before_the_first_round(run, tmp_path):
    with pytest.raises(ConfigurationError, match="leave_one_out"):
        run.job(SECURE, "controller.penalty_rule=leave_one_out").checked()
    with pytest.raises(GrandRoundsError, match="3 to"):
        run(tmp_path, SECURE, sites=SITES[:2])


def test_sums_of_two_labelled_sites_are_not_opened_although_three_take_part(run, tmp_path):
    with pytest.raises(GrandRoundsError, match="fewer than 3"):
        run(tmp_path, SECURE, sites=SITES[1:2] + SITES[2:])


def test_several_findings_have_the_head_of_plain_sums(run, tmp_path, shared_cache):
    for site in SITES[:3]:
        phantom_site(site, tmp_path / "sites", images=60, size=32, labelled=1.0, dataset=FINDINGS_NAME)
    options = ["problem.task=multi", f"problem.dataset={FINDINGS_NAME}", 'problem.classes=["round","ring","clustered"]']
    options += ["controller.class_balance=0", "controller.selection_metric=auto", VALIDATION]
    where = {"folder": tmp_path / "sites", "sites": SITES[:3]}
    one, two = (
        run(tmp_path / name, *options, f"controller.aggregation={name}", **where) for name in ("mean", "secure")
    )
    assert one.summary["rounds"][2]["ridge"]["penalty"] == two.summary["rounds"][2]["ridge"]["penalty"]
    ours, theirs = predictions(two), predictions(one)
    assert len(theirs) > 10
    for image, (_, shares) in theirs.items():
        assert len(shares) == 3
        assert ours[image][1] == pytest.approx(shares, abs=1e-6)


def test_rounds_of_averaging_are_compared_by_sums_of_scores(run, tmp_path):
    options = ("controller.rounds=2", "controller.selection_metric=accuracy")
    one, two = (
        run(tmp_path / name, *options, f"controller.aggregation={name}", name="fedavg", sites=SITES[:3])
        for name in ("mean", "secure")
    )
    scores = [
        {event["round"]: event["score"] for event in read_events(found.results) if event["event"] == "score"}
        for found in (one, two)
    ]
    assert scores[0].keys() == scores[1].keys() == {1, 2}
    assert scores[1] == pytest.approx(scores[0])
    assert two.summary["records"] == {}
    assert two.summary["summed"]["common"]["contributors"] == SITES[:3]


MASKED = [
    {"kind": "sufficient_statistics", "name": name, "treatment": "masked", "minimum": 2}
    for name in ("class_counts", "sums", "losses")
] + [{"kind": "scores", "name": "scores_*", "treatment": "masked"}]


def test_masked_by_gates_without_any_other_rule_the_run_is_that_of_a_simulation(run, tmp_path, masking, identical):
    """No number of a single site leaves; a class of few patients is left out of its sums."""
    folder = draw_hospitals(tmp_path / "sites", SITES[:3], images=120)
    where = {"folder": folder, "sites": SITES[:3]}
    masking(tmp_path / "gated", SITES[:3], MASKED)
    gated = run(tmp_path / "gated", SECURE, **where)
    simulated = run(tmp_path / "simulated", SECURE, **where)
    assert identical(gated.models, simulated.models)
    assert gated.summary["summed"] == simulated.summary["summed"]
    answers = [event for event in read_events(gated.results) if event["event"] == "answer"]
    assert {part["kind"] for event in answers for part in event.get("released", {}).values()} == {"masked_sum"}
    assert {name for event in answers for name in event["metrics"]} == set()
    assert gated.summary["privacy"]["site-1"]["treated"] == {"masked": "masked"}


def test_a_data_set_that_has_changed_by_one_patient_gives_no_sum_of_features(run, tmp_path, masking):
    """The difference of the two would be this patient's features."""
    folder = draw_hospitals(tmp_path / "sites", SITES[:3], images=120)
    where, before, after = {"folder": folder, "sites": SITES[:3]}, tmp_path / "before", tmp_path / "after"
    masking(before, SITES[:3], MASKED)
    run(before, SECURE, **where)
    for site in SITES[:3]:
        shutil.copytree(before / "flare" / site / "local", after / "flare" / site / "local")
    archive = folder / "site-1" / "images.npz"
    with np.load(archive) as stored:
        images = {name: stored[name].copy() for name in stored.files}
    images["images"][0, 0, 0] ^= 1
    np.savez(archive, **images)
    with pytest.raises(GrandRoundsError, match="the sum over all sites is lost"):
        run(after, SECURE, **where)
    trail = (after / "flare" / "site-1" / "local" / "privacy" / "audit.jsonl").read_text()
    assert "phantom has changed by" in trail


def test_a_policy_that_masks_updates_alone_keeps_the_sums_of_features(run, tmp_path, masking):
    masking(tmp_path, SITES)
    with pytest.raises(GrandRoundsError, match="4 of 4 sites refuse"):
        run(tmp_path, SECURE)
