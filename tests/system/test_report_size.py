"""Ten runs of ten sites with eight classes: how long their report takes to make, and how large it is."""

import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from grandrounds.federation.server.record import RunRecord
from grandrounds.federation.site.store import SiteStore
from grandrounds.protocol.problem import Problem
from grandrounds.seeding import numpy_generator

RUNS, SITES, ROUNDS, IMAGES = 10, [f"site-{number}" for number in range(1, 11)], 50, 250
CLASSES = ["akiec", "bcc", "bkl", "df", "mel", "nv", "scc", "vasc"]
SHARES = [0.04, 0.08, 0.12, 0.02, 0.15, 0.52, 0.04, 0.03]
SECONDS, BYTES = 20, 10_000_000

pytestmark = pytest.mark.slow


def write_run(folder, number):
    """A run as the server and the sites write it, with peers and the models' similarity in each round."""
    problem = {"dataset": "skin", "classes": CLASSES, "image_size": 64, "backbone": "compact"}
    settings = {"method": "FedPerlController", "problem": problem, "seed": number % 2, "rounds": ROUNDS}
    record = RunRecord(folder / "state" / "run" / "server", {**settings, "peers": number // 2})
    generator = numpy_generator("report size", number)
    record.event("start", rounds=ROUNDS, sites=SITES)
    for round_number in range(1, ROUNDS + 1):
        write_round(record, round_number, generator)
    record.selected = {"round": ROUNDS, "metric": "balanced_accuracy", "score": 0.6}
    problem = Problem(dataset="skin", classes=CLASSES)
    record.note_tests(problem, {site: {"common.n": IMAGES, "common.auc_macro": 0.6} for site in SITES}, {})
    record.write("finished")
    record.publish(folder / "results", [])
    for site in SITES:
        store = SiteStore(folder / "results" / site, "r-1", {})
        store.write_predictions("predictions_common", *predictions(generator))
    return folder


def write_round(record, round_number, generator):
    for site in SITES:
        scores = {"validation.balanced_accuracy": float(generator.random()), "validation.n": 60}
        metrics = {"loss": 0.7, "accepted": 0.4, "pseudo_label_accuracy": 0.8, **scores}
        record.event("answer", round=round_number, site=site, task="train", metrics=metrics)
        record.count_bytes(site, "down", {"global": 900_000, "peer-1": 800_000})
        record.count_bytes(site, "up", {"update": 800_000})
    record.event("score", round=round_number, metric="balanced_accuracy", mean=0.5)
    record.event("similarity", round=round_number, sites=SITES, matrix=np.full((10, 10), 0.5).tolist())
    peers = {site: [SITES[number - 1], SITES[number - 2]] for number, site in enumerate(SITES)}
    entry = {"round": round_number, "asked": SITES, "answered": SITES, "dropped": {}, "round_seconds": 9.0}
    record.close_round({**entry, "peers": peers})


def predictions(generator):
    header = ["image", "label", "predicted", *(f"probability_{name}" for name in CLASSES), "case"]
    rows = []
    for image in range(IMAGES):
        label = int(generator.choice(len(CLASSES), p=SHARES))
        shares = 0.4 * generator.dirichlet(np.ones(len(CLASSES)))
        shares[label if generator.random() < 0.7 else generator.integers(len(CLASSES))] += 0.6
        reported = CLASSES[int(shares.argmax())]
        rows.append([f"{image}.png", CLASSES[label], reported, *(f"{share:.6f}" for share in shares), str(image)])
    return header, rows


def test_ten_runs_of_ten_sites_and_eight_classes_are_soon_a_page_that_can_be_sent(tmp_path):
    runs = [str(write_run(tmp_path / f"run-{number}", number)) for number in range(RUNS)]
    command = [str(Path(sys.executable).with_name("grandrounds")), "report", *runs, "--out", str(tmp_path / "out")]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # Time of the processor, which does not depend on what else the machine does.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < SECONDS
    assert (tmp_path / "out" / "report.html").stat().st_size < BYTES
