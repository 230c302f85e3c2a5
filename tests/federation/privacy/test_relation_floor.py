"""A site's minimum of patients holds whatever FedIRM's job asks for, as its presets of paper and code do: none at all."""

import json
from collections import defaultdict
from pathlib import Path

import pytest

from grandrounds.data.manifest import read_manifest
from grandrounds.data.partition.phantom_site import phantom_site
from grandrounds.deployment.jobs import load_job
from grandrounds.deployment.presets import with_options
from grandrounds.federation.server.record import read_events

SITES = ["site-1", "site-2"]
PRESETS = Path(__file__).parents[3] / "jobs" / "fedirm" / "presets.json"
SMALL = [
    *("controller.rounds=2", "controller.unlabelled_start=0", "controller.validate_every=0"),
    *("executor.steps=10", "executor.batch_size=8", "executor.device=cpu"),
]


@pytest.fixture
def hospitals(tmp_path):
    """One hospital with labels and one without."""
    for site in SITES:
        phantom_site(site, tmp_path / "hospitals", size=32, images=60, labelled=float(site == "site-1"))
    return tmp_path / "hospitals"


def patients(manifest):
    """Patients by class among the labelled training images, counted in the manifest."""
    found = defaultdict(set)
    for record in read_manifest(manifest):
        if record.split == "train" and record.labelled:
            found[record.label].add(record.group)
    return {label: len(groups) for label, groups in found.items()}


def test_the_row_of_a_class_with_few_patients_stays(run, hospitals, tmp_path, install, policy_of, update_rule):
    behind = patients(hospitals / "site-1" / "manifest.csv")
    assert {count < 5 for count in behind.values()} == {True, False}, "some classes must have enough patients"
    presets = json.loads(PRESETS.read_text())
    assert {
        presets[name][part]["min_support"] for name in ("paper", "code") for part in ("controller", "executor")
    } == {0}
    rule = {"kind": "class_statistics", "name": "relation", "treatment": "minimum_support"}
    scalars = [{"name": "labelled", "part": "train", "minimum_support": 1}]
    policy = policy_of(releases=[update_rule(), rule], scalars=scalars)
    install(tmp_path / "run" / "flare" / "site-1" / "local", policy)
    job = with_options(load_job("fedirm"), [*SMALL, "controller.min_support=0", "executor.min_support=0"])
    found = run(job, tmp_path / "run", SITES, sites_dir=hospitals)
    classes = job.options("problem")["classes"]
    supports = [event["support"] for event in read_events(found.results) if event["event"] == "relation"]
    enough = {name for name, count in behind.items() if count >= 5}
    shown = {name for support in supports for name, sites in zip(classes, support, strict=True) if sites > 0}
    assert shown, "the row of a class with enough patients leaves"
    assert shown <= enough
