"""From a folder of real lesions to a tested model, and the committed divisions of the benchmark."""

import csv
import hashlib
import io
import json
from pathlib import Path

import pytest

from grandrounds.data.datasets.published import HAM10000_CLASSES, read_ham10000
from grandrounds.data.partition.divide import by_source
from grandrounds.data.partition.files import write_partition
from grandrounds.data.partition.schemes import make_partition
from grandrounds.data.partition.splits import assign_splits
from grandrounds.deployment.jobs import load_job
from grandrounds.deployment.presets import with_options
from grandrounds.deployment.simulate import choose_sites, simulate
from grandrounds.seeding import numpy_generator

pytestmark = pytest.mark.realdata
DIVISION = ("image", "label", "split", "patient", "lesion", "source", "labelled")
BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "fedperl_ham10000"


def lesions_of(manifest):
    with manifest.open() as stream:
        return {row["lesion"] for row in csv.DictReader(stream)}


def division_digest(manifest):
    """SHA-256 of a manifest without the columns that only describe patients, which were not kept when the runs were made."""
    text = io.StringIO()
    with manifest.open(newline="") as stream:
        rows = csv.DictReader(stream)
        columns = [name for name in rows.fieldnames if name in DIVISION]
        writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return hashlib.sha256(text.getvalue().encode()).hexdigest()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_benchmarks_divisions_are_made_again_to_the_byte(realdata, tmp_path, seed):
    configuration = json.loads((BENCHMARK / "configuration.json").read_text())
    committed = json.loads((BENCHMARK / "results" / f"fedavg_lower_{seed}.json").read_text())["manifests"]
    partition = configuration["partition"]
    made = make_partition(root=realdata / "ham10000", out=tmp_path / "sites", seed=seed, **partition)
    assert {site: division_digest(tmp_path / "sites" / site / "manifest.csv") for site in made["sites"]} == committed
    lesions = [lesions_of(tmp_path / "sites" / site / "manifest.csv") for site in committed]
    assert sum(map(len, lesions)) == len(set.union(*lesions)) == 7470


def test_fedperl_trains_on_lesions_of_four_devices(realdata, tmp_path, shared_cache):
    records, root = read_ham10000(realdata / "ham10000")
    divided = by_source(records[::25], 4, numpy_generator(1, "sites"))
    sites = {name: assign_splits(part, numpy_generator(1, name), site=name) for name, part in divided.items()}
    write_partition(sites, tmp_path / "sites", "skin", root, HAM10000_CLASSES, {})
    names, problem = choose_sites(None, tmp_path / "sites")
    job = load_job("fedperl")
    job.options("problem").update(problem)
    job = with_options(job, ["controller.rounds=3", "controller.warm_up=1", "executor.steps=2"])
    summary = simulate(job, tmp_path / "run", names, sites_dir=tmp_path / "sites")
    assert summary["status"] == "finished"
    assert all(len(peers) == 2 for peers in summary["rounds"][-1]["peers"].values())
    for name in names:
        tested = sum(record.split == "test" for record in sites[name])
        with (tmp_path / "run" / "results" / name / "predictions_common.csv").open() as stream:
            rows = list(csv.DictReader(stream))
        assert len(rows) == tested == summary["records"][name]["common"]["images"]
        assert {row["label"] for row in rows} <= set(HAM10000_CLASSES)
