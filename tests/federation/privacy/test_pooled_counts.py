"""Three small hospitals, whose scores are withheld, and the score of all their images, which leaves in an encrypted sum."""

import csv
import json
import shutil

import numpy as np
import pytest
import torch
from sklearn import metrics as sk

from grandrounds.data.manifest import Record, write_manifest
from grandrounds.federation.site import scoring
from grandrounds.files import write_json
from grandrounds.privacy.ledger.ledger import Ledger
from grandrounds.privacy.mechanisms.encrypted_sums import write_keys
from grandrounds.reporting.runs import read_run
from grandrounds.reporting.scores import scores_of, table_rows

pytest.importorskip("tenseal")

SITES = ["site-1", "site-2", "site-3"]
CLASSES = ["benign", "malignant"]
JOB = [
    *("problem.dataset=skin", f"problem.classes={json.dumps(CLASSES)}", "controller.rounds=1"),
    "executor.encryption=required",
    *("controller.aggregation=encrypted", "controller.norm_multiple=null", "controller.weight_multiple=null"),
    "controller.min_sites=3",
]
POOLED = {"kind": "pooled_counts", "name": "pooled_*", "treatment": "minimum_support", "minimum": 10}
COUNTS = {"kind": "counts", "name": "counts_*", "treatment": "minimum_support", "minimum": 10}
CURVES = {"kind": "curves", "name": "curves_*", "treatment": "minimum_support", "minimum": 5}
UPDATE = {"kind": "model_update", "name": "update", "treatment": "unmodified"}
SCALARS = [
    {"name": f"{name}.*", "part": part, "minimum_support": 5}
    for name, part in (("common", "test"), ("own", "test"), ("validation", "val"))
]


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory):
    """Each with five test images of one class and ten of the other, all of different patients."""
    folder = tmp_path_factory.mktemp("hospitals")
    generator = np.random.default_rng(3)
    for site in SITES:
        parts = {"train": (20, 20), "val": (10, 10), "test": (10, 5)}
        labels = [
            (part, name)
            for part, sizes in parts.items()
            for name, size in zip(CLASSES, sizes, strict=True)
            for _ in range(size)
        ]
        records = [
            Record(f"images/{number}", name, part, f"{site}-{number}") for number, (part, name) in enumerate(labels)
        ]
        (folder / site).mkdir()
        images = generator.integers(0, 256, (len(records), 32, 32, 3), dtype=np.uint8)
        np.savez(folder / site / "images.npz", images=images)
        write_manifest(records, folder / site / "manifest.csv")
        place = {"manifest": "manifest.csv", "root": "images.npz"}
        write_json(folder / site / "grandrounds.json", {"datasets": {"skin": place}})
    write_keys(folder, SITES)
    return folder


@pytest.fixture
def same_answers(monkeypatch):
    """Every site's model finds all five malignant images, and takes half of the benign ones for malignant."""

    def score(network, rows, context):
        labels = context.data.labels[rows]
        called = np.where(labels == 1, 1, np.arange(len(rows)) % 2)
        probabilities = torch.from_numpy(np.where(called[:, None] == [0, 1], 0.9, 0.1)).float()
        return scoring.site_record(context.data, rows, probabilities), probabilities

    monkeypatch.setattr(scoring, "score", score)


@pytest.fixture
def go(tiny, run, hospitals, install, policy_of, tmp_path):
    """Run with sites whose policies have these rules; the run, and what the server alone has of it."""

    def make(rules, sites=SITES, assignments=(), **options):
        for site in sites:
            policy = policy_of(releases=[UPDATE, *rules.get(site, [COUNTS, POOLED])], scalars=SCALARS)
            install(tmp_path / "w" / "flare" / site / "local", policy, site)
        found = run(tiny("fedavg", *JOB, *assignments), tmp_path / "w", sites, sites_dir=hospitals, **options)
        server = tmp_path / "server"
        server.mkdir()
        for name in ("summary.json", "events.jsonl"):
            shutil.copy(found.results / name, server)
        return found, read_run(server, "run")

    return make


def predicted(found, sites=SITES):
    """Labels and predictions at all sites together."""
    rows = []
    for site in sites:
        with (found.results / site / "predictions_common.csv").open() as stream:
            rows += list(csv.reader(stream))[1:]
    probabilities = np.array([row[-3:-1] for row in rows], float)
    return np.array([CLASSES.index(row[1]) for row in rows]), probabilities.argmax(axis=1)


def test_the_score_of_all_images_is_shown_where_those_of_the_sites_are_withheld(go, same_answers, tmp_path):
    found, run = go({})
    assert found.summary["status"] == "finished"
    for site in SITES:
        record = run.tests.sites[site]
        assert (record.images, record.counts) == (15, ())
        assert not record.score("balanced_accuracy").known
    pooled = scores_of(run).pooled
    labels, called = predicted(found)
    for name, value in {
        "accuracy": sk.accuracy_score(labels, called),
        "balanced_accuracy": sk.balanced_accuracy_score(labels, called),
        "f1_macro": sk.f1_score(labels, called, average="macro"),
        "f1_weighted": sk.f1_score(labels, called, average="weighted"),
    }.items():
        assert pooled.score(name).value == pytest.approx(value, abs=1e-6), name
    assert (pooled.images, pooled.cases) == (45, 45)
    rows = {row.name: row for row in table_rows(run)}
    assert rows["pooled"].scores["balanced_accuracy"].known
    assert not rows["mean"].scores["balanced_accuracy"].known
    assert found.summary["pooled"]["common"]["sites"] == SITES
    audit = (tmp_path / "w/flare/site-1/local/privacy/audit.jsonl").read_text().splitlines()
    pools = [line for line in map(json.loads, audit) if line["task"] == "pool"]
    assert [line["releases"]["pooled_common"]["treatment"] for line in pools] == ["minimum_support"]
    purposes = [
        booking.purpose for booking in Ledger(tmp_path / "w/flare/site-1/local/privacy", "site-1").content().bookings
    ]
    assert [purpose.release for purpose in purposes].count("pooled_common") == 2


def test_no_curve_and_no_table_of_another_model_leaves_beside_the_sum(go, same_answers, tmp_path):
    """Each has the sizes of a site's classes: the sum less those of two sites is what the third hides."""
    common = {**POOLED, "name": "pooled_common"}
    found, _ = go({"site-1": [COUNTS, POOLED, CURVES], "site-2": [{**COUNTS, "minimum": 5}, common, CURVES]})
    assert found.summary["pooled"]["common"]["sites"] == SITES
    for site, sums in (("site-1", {"pooled_common", "pooled_own"}), ("site-2", {"pooled_common"})):
        audit = (tmp_path / "w/flare" / site / "local/privacy/audit.jsonl").read_text().splitlines()
        (test,) = [line for line in map(json.loads, audit) if line["task"] == "test"]
        assert test["releases"].keys() - {"curves_validation"} == sums
    assert {name for bytes_of in found.summary["bytes"].values() for name in bytes_of} == {"down.global", "up.update"}


def test_a_site_whose_policy_does_not_name_the_sum_keeps_its_counts_out_of_it(go, same_answers):
    found, run = go({"site-2": [COUNTS]})
    assert found.summary["pooled"]["common"] == {
        "sites": ["site-1", "site-3"],
        "reason": "2 of 3 sites have added their counts, a sum must be of at least 3",
    }
    assert not scores_of(run).pooled.score("balanced_accuracy").known
    assert any("2 of 3 sites" in note for note in run.origin.notes)


def test_the_largest_minimum_of_the_policies_hides_the_class(go, same_answers):
    found, run = go({"site-3": [COUNTS, {**POOLED, "minimum": 16}]})
    assert (np.array(found.summary["pooled"]["common"]["record"]["counts"]["images"])[:, :, :2] == -1).all()
    assert scores_of(run).pooled.score("balanced_accuracy").reason.startswith("of few cases and hidden")


@pytest.mark.slow
def test_in_flares_simulator_the_shown_scores_are_those_of_the_predictions(go):
    found, run = go(
        {site: [COUNTS, {**POOLED, "minimum": 2}] for site in SITES},
        SITES,
        ["problem.backbone=compact"],
        engine="flare",
        threads=2,
    )
    assert found.summary["pooled"]["common"]["sites"] == SITES
    labels, called = predicted(found)
    record = run.tests.together
    shown = ~record.hidden[0]
    recalls = sk.recall_score(labels, called, average=None)
    ours = [scores["sensitivity"].value for scores in record.classes]
    np.testing.assert_allclose(np.array(ours)[shown], recalls[shown], atol=1e-6)
    assert record.score("accuracy").value == pytest.approx(sk.accuracy_score(labels, called), abs=1e-6)
