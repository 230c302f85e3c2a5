"""Runs as folders, with predictions whose scores are known."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grandrounds.federation.server.record import FORMAT
from grandrounds.reporting.run import ReadRun
from grandrounds.seeding import numpy_generator

CLASSES = ("nevus", "melanoma", "other")
SITES = ("site-1", "site-2", "site-10")
COUNTS = {"nevus": 20, "melanoma": 12, "other": 8}


def predictions(
    site: str, right: float = 0.8, counts: Mapping[str, int] | None = None, classes: Sequence[str] = CLASSES
) -> str:
    """A site's predictions as CSV: so many images of each class, this share of them predicted rightly."""
    generator = numpy_generator("predictions", site)
    lines = ["image,label,predicted," + ",".join(f"probability_{name}" for name in classes) + ",case"]
    for label, count in (COUNTS if counts is None else counts).items():
        for number in range(count):
            true = classes.index(label)
            chosen = true if number < round(right * count) else (true + 1) % len(classes)
            shares = 0.15 * generator.dirichlet(np.ones(len(classes)))
            shares[chosen] += 1 - shares.sum()
            cells = ",".join(f"{share:.6f}" for share in shares)
            lines.append(f"secret/{site}-{label}-{number}.png,{label},{classes[chosen]},{cells},{len(lines)}")
    return "\n".join(lines) + "\n"


def records(test: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """What a summary keeps of sites that released these metrics, named ``<model>.<score>``, and no counts."""
    found: dict[str, Any] = {}
    for site, scores in test.items():
        for name, value in scores.items():
            model, _, score = name.partition(".")
            record = found.setdefault(site, {}).setdefault(model, {"images": 0, "unit": "image", "exact": {}})
            record |= {"images": int(value)} if score == "n" else {"exact": {**record["exact"], score: value}}
    return found


def summary(**changes: Any) -> dict[str, Any]:
    base = {
        "format": FORMAT,
        "status": "finished",
        "reason": "",
        "rounds_done": 3,
        "contributions": dict.fromkeys(SITES, 3),
        "selected": {"round": 2, "metric": "balanced_accuracy", "score": 0.5},
        "records": records({site: {"common.n": 40, "common.auc_macro": 0.8} for site in SITES}),
        "untested": [],
        "bytes": {site: {"down.global": 3_000_000, "down.peer-1": 500_000, "up.update": 2_000_000} for site in SITES},
        "configuration": {
            "method": "FedPerlController",
            "problem": {"dataset": "skin", "classes": list(CLASSES), "image_size": 32, "backbone": "compact"},
            "seed": 1,
            "rounds": 3,
            "run_name": "run",
        },
        "versions": {"grandrounds": "0.1.0"},
        "seconds": 12.5,
        "rounds": [],
    }
    if "test" in changes:
        changes["records"] = records(changes.pop("test"))
    return {**base, **changes}


def events(dropped: Mapping[str, int] | None = None, rounds: int = 3) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{"event": "start", "rounds": 3, "sites": list(SITES)}]
    for number in range(1, rounds + 1):
        for site in SITES:
            if (dropped or {}).get(site) == number:
                found.append({"event": "dropped", "round": number, "site": site, "reason": "patient-7.png is broken"})
                continue
            scored = {"validation.balanced_accuracy": 0.2 + 0.1 * number} if number > 1 else {}
            metrics = {"loss": 1.0, **scored}
            found.append({"event": "answer", "round": number, "site": site, "task": "train", "metrics": metrics})
        if number > 1:
            found.append({"event": "score", "round": number - 1, "metric": "balanced_accuracy", "mean": 0.1 * number})
        found.append({"event": "round_end", "round": number, "answered": list(SITES), "peers": {}})
    return found


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """Write a run's results; returns the workspace.

    ``right`` is the share of right predictions by site, ``predicted`` replaces files, ``recorded`` is the record's events.
    """

    def make(
        name: str = "run",
        right: Mapping[str, float] | float = 0.8,
        model: str = "common",
        counts: Mapping[str, int] | None = None,
        recorded: Sequence[Mapping[str, Any]] | None = None,
        sites: Sequence[str] = SITES,
        **changes: Any,
    ) -> Path:
        folder = tmp_path / name / "results"
        for site in sites:
            share = right if isinstance(right, float) else right[site]
            (folder / site).mkdir(parents=True, exist_ok=True)
            (folder / site / f"predictions_{model}.csv").write_text(predictions(site, share, counts))
        folder.mkdir(parents=True, exist_ok=True)
        tested = {f"{model}.n": sum((COUNTS if counts is None else counts).values()), f"{model}.auc_macro": 0.8}
        changes = {"test": dict.fromkeys(SITES, tested), **changes}
        (folder / "summary.json").write_text(json.dumps(summary(**changes)))
        (folder / "provenance.json").write_text('{"simulated": true}')
        lines = events() if recorded is None else recorded
        (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in lines))
        return tmp_path / name

    return make


def without_probabilities(run: ReadRun) -> ReadRun:
    """The run with predictions of which only the class is known."""
    sites = {
        site: replace(one, questions=tuple(replace(cases, probabilities=None) for cases in one.questions))
        for site, one in run.tests.sites.items()
    }
    return replace(run, tests=replace(run.tests, sites=sites))


def configured(**changes: Any) -> dict[str, Any]:
    """A configuration with some options changed."""
    return {**summary()["configuration"], **changes}
