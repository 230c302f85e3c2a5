"""Curves of sites that keep their predictions: they come with the last answer, by a rule, and a report merges them."""

import csv
import json
from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from grandrounds.errors import MessageError
from grandrounds.federation.server.dispatcher import received_curves
from grandrounds.protocol.messages import Release, ReleaseKind, Result
from grandrounds.reporting.figures.runs import run_drawings
from grandrounds.reporting.model import report_on
from grandrounds.reporting.runs import read_run

SITES = ["site-1", "site-2", "site-3"]
SCORES = [
    {"name": f"{name}.*", "part": part, "minimum_support": 2}
    for name, part in (("common", "test"), ("own", "test"), ("validation", "val"))
]
UPDATE = {"kind": "model_update", "name": "update", "treatment": "unmodified"}


@pytest.fixture(scope="module")
def finished(tiny, run, install, policy_of, tmp_path_factory):
    """A run of a site whose policy has no rule for curves, one that requires eleven patients, and one without a gate."""
    place = tmp_path_factory.mktemp("curves")
    rule = {"kind": "curves", "name": "curves_common", "treatment": "minimum_support", "minimum": 11}
    for site, releases in (("site-1", [UPDATE]), ("site-2", [UPDATE, rule])):
        install(place / "flare" / site / "local", policy_of(releases=releases, scalars=SCORES), site)
    found = run(tiny("fedavg", "controller.rounds=1"), place, sites=SITES)
    (server,) = {path.parents[1] for path in (place / "flare").glob("**/site-3/curves_common.json")}
    return SimpleNamespace(**vars(found), place=place, server=server)


def written(folder, site, model="common"):
    return json.loads((folder / site / f"curves_{model}.json").read_text())


def class_rows(content):
    """Counts of each class that is there, merged bins left out."""
    counts = np.array(content["counts"])[:-1].clip(0)
    return {name: rows for name, rows in zip(content["classes"], counts, strict=True) if rows.any()}


def test_a_site_without_a_rule_keeps_its_curves_and_only_its_own_log_reports_it(finished):
    assert not (finished.server / "site-1").exists()
    assert class_rows(written(finished.record.parent, "site-1"))
    lines = [
        json.loads(line)
        for line in (finished.place / "flare/site-1/local/privacy/audit.jsonl").read_text().splitlines()
    ]
    assert [line["withheld"] for line in lines if line["task"] == "test"] == [
        ["counts_common", "counts_own", "curves_common", "curves_own", "image_moments"]
    ]
    assert finished.summary["records"]["site-1"]["common"]["images"] > 0


def test_without_a_rule_for_counts_they_stay_and_the_record_has_the_fallback_of_the_selection(finished):
    assert [site for site, tested in finished.summary["records"].items() if "counts" in tested["common"]] == ["site-3"]
    selected = finished.summary["selected"]
    assert (selected["basis"], selected["metric"]) == ("mean over sites", "balanced_accuracy")
    assert selected["note"] == "no counts from site-1, site-2: mean over sites"


@pytest.mark.parametrize(("site", "least"), [("site-2", 11), ("site-3", 10)])
def test_every_count_is_zero_or_of_the_sites_minimum(finished, site, least):
    counts = np.array(written(finished.server, site)["counts"])
    assert (counts > 0).any()
    assert ((counts <= 0) | (counts >= least)).all()
    assert finished.summary["privacy"].get("site-2", {})["treated"]["curves_common"] == "minimum_support"


def test_counts_are_of_patients_and_not_of_images(finished, shared_cache):
    patients = defaultdict(set)
    with (shared_cache / "phantom" / "site-3" / "manifest.csv").open() as stream:
        for row in csv.DictReader(stream):
            if row["split"] == "test":
                patients[row["label"]].add(row["patient"])
    classes = class_rows(written(finished.server, "site-3"))
    assert classes
    for name, rows in classes.items():
        assert rows[0].sum() == len(patients[name])


def test_curves_are_not_counted_as_what_training_costs(finished):
    assert set(finished.summary["bytes"]["site-3"]) == {"down.global", "up.update"}


def test_a_report_on_what_the_server_has_draws_the_curves_of_the_sites_that_sent_them(finished):
    found = read_run(finished.server, "run")
    assert list(found.tests.curves) == ["site-2", "site-3"]
    assert found.tests.predictions == {}
    report = report_on([found])
    drawn = {drawing.name for drawing in run_drawings(report, report.first)}
    assert {"roc", "precision_recall"} <= drawn


def answer(name, counts):
    return Result({name: Release(ReleaseKind.CURVES, {"counts": counts})})


@pytest.mark.parametrize(
    ("name", "counts", "message"),
    [
        ("../site-2", torch.full((3, 2, 50), -1), "curves must be curves_common or curves_own or curves_validation"),
        ("curves_common", torch.full((4, 2, 50), -1), "counts must be int64 of shape"),
        ("curves_common", torch.full((3, 2, 50), 9), "a count must be 0 or at least 10"),
    ],
)
def test_the_server_refuses_curves_that_it_could_not_use(name, counts, message):
    with pytest.raises(MessageError, match=message):
        received_curves(answer(name, counts), ("nevus", "melanoma"))
