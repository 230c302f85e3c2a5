"""Whom a bound on norms would touch in honest runs, and what it would change.

Every fourth image of HAM10000 at 32 px, divided between six sites with label skew (Dirichlet, alpha 0.3), so that sites
differ in classes, in numbers of images and, where a round is an epoch (``fedirm``, ``rscfed``), in numbers of steps. Each
job runs with its own options and without a bound; the norm of every update is compared with the median by which it would
have been bounded. Where a multiple of 2 or 3 would have bounded one, the job runs again with that bound, and the scores are
compared. About three minutes of CPU time.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.experiment import DATA, load_job_of_examples
from benchmarks.measure import run, table
from grandrounds.api.running import Run
from grandrounds.api.sites import Sites
from grandrounds.deployment.jobs import Job
from grandrounds.deployment.presets import with_options
from grandrounds.deployment.simulate import simulate
from grandrounds.federation.server.robust import BoundedContributions
from grandrounds.files import read_json_object, write_json
from grandrounds.privacy.ledger.ledger import Ledger

SITES, ALPHA, ROUNDS, SHARE, EVERY = 6, 0.3, 6, 0.25, 4
MULTIPLES, TRIED = (1.5, 2.0, 3.0, 5.0, 10.0), (2.0, 3.0)
METRIC = "balanced_accuracy"
GATE = [{"path": "grandrounds.privacy.gate.filters.SitePrivacyGate"}]
NOISE = {"kind": "model_update", "name": "update", "treatment": "clip_and_noise", "clip": 1.0, "noise_multiplier": 0.01}
"""Noise that is a few times as long as the clipped update of the network ``compact``."""
SCALARS = {"validation.*": "val", "common.*": "test", "own.*": "test", "samples": "train"}
PRIVATE = ("problem.norm=group", "executor.class_weights=none")
CASES: dict[str, tuple[str, tuple[str, ...], float]] = {
    "fedirm, 2 labelled sites": ("fedirm", ("controller.unlabelled_start=2",), 0.0),
    "rscfed, 2 labelled sites": ("examples/rscfed/job", ("controller.unlabelled_start=2",), 0.0),
    "fedavg": ("fedavg", ("executor.labels=all",), 0.0),
    "ssfl": ("ssfl", (), 0.0),
    "fedperl": ("fedperl", (), 0.0),
    "fed_align_cl": ("fed_align_cl", (), 0.0),
    "fedavg, DP-SGD": ("fedavg", (*PRIVATE, "executor.labels=all", "executor.record_noise_multiplier=1.0"), 0.0),
    "fedavg, noise at 3 of 6 sites": ("fedavg", (*PRIVATE, "executor.labels=all"), 0.5),
}
"""Job, options, and the share of sites whose gate adds noise."""


@contextmanager
def ratios_noted(found: list[tuple[int, float]]) -> Iterator[None]:
    """Note the round of each update, and its norm over the median that a bound would be a multiple of."""
    original, rounds = BoundedContributions.close, iter(range(1, 10_000))

    def close(self: BoundedContributions) -> Any:
        number, norms = next(rounds), [norm for norm, _ in self._round.values()]
        typical = median([norm for _, norm, _ in self._past] or norms)
        found.extend((number, norm / typical) for norm in norms)
        return original(self)

    BoundedContributions.close = close  # type: ignore[method-assign]
    try:
        yield
    finally:
        BoundedContributions.close = original  # type: ignore[method-assign]


def gated(local: Path, site: str) -> None:
    """Give a simulated site a gate that clips and adds noise."""
    numbers = [{"name": name, "part": part, "minimum_support": 1} for name, part in SCALARS.items()]
    policy = {"unit": "site", "delta": 1e-5, "releases": [NOISE], "scalars": numbers}
    scope = {"name": "noisy", "properties": {"grandrounds": policy}, "task_data_filters": GATE}
    local.mkdir(parents=True)
    write_json(local / "privacy.json", {"scopes": [{**scope, "task_result_filters": GATE}], "default_scope": "noisy"})
    Ledger.create(local / "privacy", site)


def scored(job: Job, folder: Path, sites: Sites, noisy: float) -> float:
    """Balanced accuracy of the selected model on each site's test images, mean over the sites."""
    names = list(sites.names)
    for site in names[: round(noisy * len(names))]:
        gated(folder / "flare" / site / "local", site)
    simulate(job, folder, names, sites.folder)
    return float(Run(folder).scores().loc["mean", METRIC])


def case(name: str, sites: Sites, rounds: int, parent: Path) -> dict[str, Any]:
    """Ratios without a bound, and scores without and with bounds."""
    job_name, options, noisy = CASES[name]
    job = with_options(
        load_job_of_examples(job_name),
        [
            f"problem.dataset={sites.problem['dataset']}",
            f"problem.classes={json.dumps(sites.problem['classes'])}",
            f"controller.rounds={rounds}",
            "executor.device=cpu",
            "executor.cpu_threads=1",
            *options,
        ],
    )
    found: list[tuple[int, float]] = []
    scores = {}
    for multiple in (None, *TRIED):
        if multiple is not None and all(ratio <= multiple for _, ratio in found):
            scores[f"{multiple:g}"] = scores["none"]  # an update within the bound is used as it is
            continue
        bound = with_options(job, [f"controller.norm_multiple={json.dumps(multiple)}"])
        with tempfile.TemporaryDirectory(dir=parent) as folder, ratios_noted(found if multiple is None else []):
            score = round(scored(bound, Path(folder), sites, noisy), 4)
        scores["none" if multiple is None else f"{multiple:g}"] = score
    ratios = [ratio for _, ratio in found]
    return {
        "case": name,
        "updates": len(ratios),
        "largest": round(max(ratios), 2),
        "largest_first": round(max(ratio for number, ratio in found if number == 1), 2),
        "over": {f"{multiple:g}".replace(".", "_"): sum(r > multiple for r in ratios) for multiple in MULTIPLES},
        "ratios": [(number, round(ratio, 3)) for number, ratio in found],
        "scores": scores,
    }


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """A row for each job."""
    root, rounds = DATA / "ham10000", 2 if options.quick else ROUNDS
    names = [name for name in CASES if not options.only or name in options.only]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        os.environ["GRANDROUNDS_CACHE"] = str(out / "cache")
        common: dict[str, Any] = {"scheme": "dirichlet", "alpha": ALPHA, "splits": "draw", "labelled": SHARE}
        few: dict[str, Any] = {"scenario": "few_labels", "labelled_sites": ("site-1", "site-2")}
        table = (root / "ham10000_manifest.csv").read_text().splitlines()
        (out / "manifest.csv").write_text("\n".join([table[0], *table[1::EVERY], ""]))
        places = out / "manifest.csv", root / "ham10000_200x150.zip"
        all_sites = Sites.from_manifest(*places, out / "all", sites=SITES, **common)
        few_sites = Sites.from_manifest(*places, out / "few", sites=SITES, **common, **few)
        images = all_sites.counts()["training"]
        cases = []
        for name in names:
            cases.append(case(name, few_sites if "labelled" in name else all_sites, rounds, out))
            print(json.dumps({key: value for key, value in cases[-1].items() if key != "ratios"}), flush=True)
    if options.only and not options.quick and options.out.is_file():
        others = {found["case"]: found for found in read_json_object(options.out)["cases"]}
        measured_now = {found["case"]: found for found in cases}
        cases = [{**others, **measured_now}[name] for name in CASES if name in others or name in measured_now]
    return {"rounds": rounds, "images": [int(images.min()), int(images.max())], "cases": cases}


def tables(result: dict[str, Any]) -> str:
    """A row for each job."""
    beyond = {f"beyond {multiple:g}": f"over.{multiple:g}".replace("1.5", "1_5") for multiple in MULTIPLES}
    columns = {
        "job": "case",
        "updates": "updates",
        "largest norm over median": "largest",
        "in the first round": "largest_first",
        **beyond,
        "score, no bound": "scores.none",
        **{f"bound {multiple:g}": f"scores.{multiple:g}" for multiple in TRIED},
    }
    few, many = result["images"]
    note = f"{result['rounds']} rounds, sites of {few} to {many} training images. Score: balanced accuracy, mean over sites."
    return f"{note}\n\n{table(columns, result['cases'], 3)}"


if __name__ == "__main__":
    run(
        __file__,
        measured,
        tables,
        only=dict(action="append", choices=list(CASES), help="a case; the others stay"),
    )
