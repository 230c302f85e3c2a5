"""Federations whose images have any number of findings."""

import csv
from json import dumps

import numpy as np
import pytest

from grandrounds.data.partition.phantom_site import FINDINGS_NAME, phantom_site
from grandrounds.deployment.jobs import job_names, load_job
from grandrounds.deployment.presets import with_options, with_preset
from grandrounds.errors import ConfigurationError
from grandrounds.federation.server.record import read_events

FINDINGS = ("round", "ring", "clustered")
MULTI = [
    "problem.task=multi",
    f"problem.dataset={FINDINGS_NAME}",
    'problem.classes=["round","ring","clustered"]',
    "controller.selection_metric=auto",
]
MORE = {
    "fedperl": ["controller.warm_up=0", "controller.pa_min_peers=1", "controller.peers=1"],
    "fedirm": ["controller.unlabelled_start=1", "executor.min_support=1", "controller.min_support=1"],
}
SUPPORTED = ("local", "local_fixmatch", "fedavg", "ssfl", "fedperl", "fedirm")


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory):
    """Three hospitals: one with all labels, one with few, one with none; and a server with images."""
    folder = tmp_path_factory.mktemp("findings")
    phantom_site("server", folder, images=120, size=32, labelled=1.0, dataset=FINDINGS_NAME)
    for number, labelled in ((1, 1.0), (2, 0.2), (3, 0.0)):
        phantom_site(f"site-{number}", folder, images=120, size=32, labelled=labelled, dataset=FINDINGS_NAME)
    return folder


def job_of(name, tiny):
    options = [*MULTI, "controller.rounds=2", *MORE.get(name, [])]
    return with_options(load_job(name), [*options, "executor.steps=2"]) if name == "fedirm" else tiny(name, *options)


@pytest.mark.parametrize("name", SUPPORTED)
def test_methods_train_score_and_write_findings(name, tiny, run, hospitals, tmp_path):
    job = job_of(name, tiny)
    found = run(job, tmp_path, ["site-1", "site-2"], sites_dir=hospitals)
    assert found.summary["status"] == "finished"
    assert found.summary["selected"]["metric"] in ("auc_macro", "log_likelihood")
    model = "own" if name.startswith("local") else "common"
    for site in ("site-1", "site-2"):
        scores = found.summary["records"][site][model]["exact"]
        assert 0 <= scores["auc_macro"] <= 1
        assert "accuracy" not in scores, "argmax means nothing here"
        with (found.results / site / f"predictions_{model}.csv").open() as stream:
            rows = list(csv.DictReader(stream))
        assert list(rows[0]) == [
            "image",
            *(f"{kind}_{one}" for kind in ("label", "predicted", "probability") for one in FINDINGS),
            "case",
        ]
        assert {row[f"label_{one}"] for row in rows for one in FINDINGS} == {"0", "1"}
        assert any(sum(float(row[f"probability_{one}"]) for one in FINDINGS) > 1.01 for row in rows) or name != "fedavg"
    counts = found.summary["records"]["site-1"][model]["counts"]["images"]
    assert [len(finding) for finding in counts] == [2, 2, 2], "absent and present"


@pytest.mark.parametrize("preset", ["scratch", "recommended"])
def test_the_filter_of_fedirms_presets_takes_findings(preset, tiny, run, hospitals, tmp_path):
    advised = with_preset(load_job("fedirm"), preset)
    chosen = [f"executor.{one}={dumps(advised.options('executor')[one])}" for one in ("mc_dropout", "min_confidence")]
    chosen.append(f"controller.labelled_weight={advised.options('controller')['labelled_weight']}")
    job = with_options(job_of("fedirm", tiny), chosen)
    found = run(job, tmp_path, ["site-1", "site-3"], sites_dir=hospitals)
    assert found.summary["status"] == "finished"


@pytest.mark.parametrize("name", ["ssfl", "fedperl"])
def test_recommended_pseudo_labels_of_findings_are_not_aligned(name, tiny, run, hospitals, tmp_path):
    advised = with_preset(load_job(name), "recommended").options("executor")
    assert advised["align_distribution"]
    chosen = ("teacher", "align_distribution", "threshold", "consistency_weight")
    labels = [f"executor.{one}={dumps(advised[one])}" for one in chosen if one in advised]
    job = tiny(name, *MULTI, "controller.rounds=2", *MORE.get(name, []), *labels)
    found = run(job, tmp_path, ["site-1", "site-2"], sites_dir=hospitals)
    assert found.summary["status"] == "finished"


def test_the_server_trains_on_and_selects_by_findings_of_its_own(tiny, run, hospitals, tmp_path):
    training = '{"steps": 2, "batch_size": 8}'
    options = ["controller.rounds=1", "controller.selection_images=server", f"controller.server_training={training}"]
    job = tiny("fedavg", *MULTI, *options, "controller.min_sites=1")
    found = run(job, tmp_path, ["site-1"], sites_dir=hospitals)
    assert found.summary["selected"]["basis"] == "server's images"
    assert found.summary["rounds"][0]["server_training"]["samples"] > 0


@pytest.mark.parametrize("name", sorted(set(job_names()) - {*SUPPORTED, "ridge"}))
def test_other_methods_refuse_findings_in_one_line(name):
    job = with_options(load_job(name), ["problem.task=multi", 'problem.classes=["a","b"]'])
    with pytest.raises(ConfigurationError, match=f"not supported by {name}; the jobs for it are local, "):
        job.checked()


def test_fedirm_matches_two_rows_for_each_finding(tiny, run, hospitals, tmp_path):
    job = job_of("fedirm", tiny)
    job = with_options(
        job, ["controller.rounds=3", "executor.release_relation=true", "executor.uncertainty_threshold=0.69"]
    )
    found = run(job, tmp_path, ["site-1", "site-3"], sites_dir=hospitals)
    events = read_events(found.results)
    last = [event for event in events if event["event"] == "relation"][-1]
    for relation in (last, last["pseudo_relations"]["site-3"]):
        matrix = np.array(relation["matrix"])
        assert matrix.shape == (6, 2), "absent and present for each of three findings"
        assert matrix.sum(axis=1) == pytest.approx(np.ones(6), abs=1e-5)
    assert last["support"] == [1] * 6
    metrics = [
        e["metrics"] for e in events if e["event"] == "answer" and e["site"] == "site-3" and e["task"] == "train"
    ]
    assert metrics[-1]["matched_rows"] > 0
    assert 0 < metrics[-1]["kept"] <= 1
    assert metrics[-1]["relation_loss"] > 0


@pytest.mark.slow
def test_federated_averaging_learns_findings(run, hospitals, tmp_path):
    options = ["controller.rounds=5", "executor.steps=25", "executor.learning_rate=0.003"]
    job = with_options(load_job("fedavg"), [*MULTI, *options, "executor.device=cpu"])
    found = run(job, tmp_path, ["site-1", "site-2"], sites_dir=hospitals)
    areas = [scores["common"]["exact"]["auc_macro"] for scores in found.summary["records"].values()]
    assert np.mean(areas) > 0.6, areas
