"""Where the time of commands goes: the share of each stage in runs of the methods, ``import``, ``evaluate`` and ``doctor``.

Each command runs in a process of its own with one worker and one thread, and a second thread looks at its stack a hundred
times a second. The CPU time since the last look counts for the first stage that has a function in the stack, from the
innermost one outwards, so that other programs on the machine change no share.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.experiment import DATA
from benchmarks.inference.command import draw
from benchmarks.measure import ROOT, in_child, run
from benchmarks.tables import markdown_table
from grandrounds.deployment.processes import variables_set
from grandrounds.plugins import PLUGINS_VARIABLE

INTERVAL = 0.01
STAGES = {
    "import": ("importlib/",),
    "decoding": ("data/images/decoding", "data/images/files/", "data/images/preparation", "data/images/cache"),
    "tables, digests, near copies": (
        "data/manifest",
        "data/datasets/",
        "data/leaks",
        "data/partition/",
        "zipfile",
        "pandas/",
    ),
    "views, images in memory": ("data/images/",),
    "networks without gradients": ("models/inference/", "site/features"),
    "backward pass": ("torch/autograd/", "torch/_tensor.py"),
    "optimizer": ("torch/optim/",),
    "closed form": ("models/closed_form/", "site/closed_form"),
    "scores and intervals": ("evaluation/",),
    "privacy gate": ("privacy/",),
    "checkpoints and record": (
        "federation/checkpoints",
        "server/record",
        "site/store",
        "torch/serialization",
        "/files.py",
    ),
    "messages and sums": ("federation/server/", "protocol/", "nvflare/"),
    "networks in training": ("methods/", "federation/site/training", "torch/nn/"),
    "tables, figures, pages": ("reporting/", "console/", "matplotlib/", "jinja2/", "rich/"),
}
"""By parts of the paths of files; a file counts for the first stage that has it."""
PASSING = ("torch/nn/",)
"""Files that say nothing of why they are called, unless nothing else is in the stack."""
SIDE = 64


def measured(options: argparse.Namespace) -> dict[str, Any]:
    plug_in = {PLUGINS_VARIABLE: "published_data", "PYTHONPATH": str(ROOT / "examples" / "published_data")}
    with tempfile.TemporaryDirectory() as folder, variables_set(plug_in):
        draw(Path(folder) / "images", 5 if options.quick else None)
        found = {}
        for name, command in commands(Path(folder), options.quick).items():
            print(name, file=sys.stderr)
            found[name] = in_child("benchmarks.stages.run.sampled", arguments=command)
        return {"commands": found}


def commands(folder: Path, quick: bool) -> dict[str, list[str]]:
    """The commands in their order: some prepare others, and are measured as well."""
    cells, breast, noisy = (str(folder / name) for name in ("cells", "breast", "noisy"))
    few = ["--scheme", "iid", "--sites", "4", "--set", "scenario=few_labels", "--set", "labelled_sites=site-1"]
    root = {name: ["--root", str(DATA / name)] for name in ("pbc", "mias")}
    small = ["--set", f"problem.image_size={SIDE}", "--set", "executor.cpu_threads=1", "--workers", "1"]

    def simulated(job: str, sites: str, rounds: int = 0) -> list[str]:
        length = ["--rounds", str(2 if quick else rounds)] if rounds else []
        where = ["--sites-dir", sites, "--workspace", str(folder / job)]
        return ["simulate", job, "--preset", "recommended", *where, *small, *length]

    ridge = str(folder / "ridge")
    return {
        "import": ["import", str(folder / "images"), "--out", str(folder / "imported")],
        "partition pbc": ["partition", "pbc", *root["pbc"], *few, "--out", cells],
        "doctor, first time": ["doctor", "--sites-dir", cells, "--image-size", str(SIDE), "--purpose", "evaluation"],
        "doctor, again": ["doctor", "--sites-dir", cells, "--image-size", str(SIDE), "--purpose", "evaluation"],
        "simulate ridge": [*simulated("ridge", cells), "--sites", "3"],
        "evaluate": [
            "evaluate",
            ridge,
            "--sites-dir",
            cells,
            "--site",
            "site-4",
            "--out",
            str(folder / "evaluation.json"),
        ],
        "report": ["report", ridge, "--out", str(folder / "report.html")],
        "simulate fedirm": simulated("fedirm", cells, 5),
        "partition pbc, noisy": ["partition", "pbc", *root["pbc"], "--scheme", "mdhfl", "--out", noisy],
        "simulate mdhfl": simulated("mdhfl", noisy, 5),
        "partition mias": ["partition", "mini_mias", *root["mias"], "--out", breast],
        "simulate fed_align_cl": simulated("fed_align_cl", breast, 5),
    }


def sampled(arguments: list[str]) -> dict[str, Any]:
    """Run a command of the package, and count samples of the main thread's stack by stage."""
    counts: dict[str, float] = defaultdict(float)  # seconds of CPU
    ended = threading.Event()
    main_thread = threading.main_thread().ident
    assert main_thread is not None

    def look() -> None:
        last = time.process_time()
        while not ended.wait(INTERVAL):
            counts[stage_of(sys._current_frames().get(main_thread))] += time.process_time() - last
            last = time.process_time()

    watcher = threading.Thread(target=look, daemon=True)
    cpu, wall = time.process_time(), time.perf_counter()
    watcher.start()
    status: Any = 0
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            from grandrounds.cli import main

            sys.argv = ["grandrounds", *arguments]
            main()
    except SystemExit as exit_:
        status = exit_.code
    ended.set()
    watcher.join()
    if status:
        raise SystemExit(printed.getvalue())
    total = sum(counts.values())
    shares = {name: round(count / total, 4) for name, count in sorted(counts.items(), key=lambda each: -each[1])}
    return {"cpu": round(time.process_time() - cpu, 1), "wall": round(time.perf_counter() - wall, 1), "shares": shares}


def stage_of(frame: FrameType | None) -> str:
    """The stage of a stack, innermost function first."""
    passing = "other"
    while frame is not None:
        name = frame.f_code.co_filename.replace("<frozen importlib._bootstrap", "importlib/")
        found = next((stage for stage, parts in STAGES.items() if any(part in name for part in parts)), "")
        if found and not any(part in name for part in PASSING):
            return found
        passing = found or passing
        frame = frame.f_back
    return passing


def tables(result: dict[str, Any]) -> str:
    found = result["commands"]
    rows = []
    for name, one in found.items():
        large = [f"{stage} {100 * share:.0f} %" for stage, share in one["shares"].items() if share >= 0.05]
        rows.append([f"`{name}`", one["cpu"], "; ".join(large)])
    return markdown_table(["command", "CPU s", "stages of at least 5 % of the time"], rows, 1)


if __name__ == "__main__":
    run(__file__, measured, tables, timed=False)
