"""Measure the same federated averaging by Flower, by FLARE's own recipe, by a plain torch loop and by this package.

All train the same network on the same images, with as many sites, rounds and steps of the same size, and test the last
model. Each run is a process of its own with all that it starts; the programs take turns. Flower needs an environment of its
own, because it requires other versions of FLARE's libraries.

    python -m venv runs/flower && runs/flower/bin/pip install "flwr[simulation]" torch numpy pillow
    python -m benchmarks.frameworks.run --flower runs/flower/bin/python
"""

from __future__ import annotations

import argparse
import ast
import csv
import ctypes
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from nvflare.app_opt.pt.decomposers import TensorDecomposer
from nvflare.fuel.utils import fobs
from nvflare.private.fed.utils.fed_utils import nvflare_fobs_initialize
from PIL import Image

from benchmarks.measure import MEBIBYTE, output_of, run, spread, table
from benchmarks.parties import site_names
from benchmarks.processes import proportional_bytes, sampled
from benchmarks.rehearsal.kit_processes import children_of, told_of
from grandrounds.data.images.devices import DEVICES
from grandrounds.data.manifest import read_manifest
from grandrounds.data.partition.files import MANIFEST_FILE
from grandrounds.data.partition.phantom_site import IMAGES_FILE, phantom_site

PROGRAMS = Path(__file__).with_name("programs")
CASES = {2: (4, 2), 10: (4, 1), 50: (1, 1)}
"""For each number of sites: rounds, and runs of each program."""
STEPS, IMAGES, SIDE = 40, 240, 32
MOST_THREADS = 10
"""Of FLARE's simulator, which has a process of some 300 MiB for each."""
SAMPLE_SECONDS = 0.5
PR_SET_CHILD_SUBREAPER = 36
SECONDS_TO_END = 10.0
FLOWER_VERSIONS = """
import json
from importlib.metadata import version
print(json.dumps({name: version(name) for name in ("flwr", "ray", "torch")}))
"""
FLOWER_BYTES = """
import sys
sys.path.insert(0, sys.argv[1])
from flwr.app import ArrayRecord
from network import Network
print(sum(len(array.data) for array in ArrayRecord(Network().state_dict()).values()))
"""


class Arm(NamedTuple):
    """A program, all files that its user writes, and what it prints when the first round has ended."""

    title: str
    files: tuple[str, ...]
    first_round: str
    messages: str | None = None
    """Which of :func:`message_bytes` it passes between server and sites."""
    simulator: bool = False
    """Whether it runs in FLARE's simulator, with so many threads."""


OWN = ("own_run.py", "own_network.py", "network.py")
SHARED = ("network.py", "training.py")
ARMS = {
    "plain": Arm("plain torch loop", ("plain_loop.py", *SHARED), r"end of round 1"),
    "own": Arm("Grand Rounds, in process", OWN, r"round 1/", "tensors"),
    "own_flare": Arm("Grand Rounds, FLARE's simulator", OWN, r"round 1/", "flare", simulator=True),
    "flare": Arm(
        "FLARE's FedAvgRecipe",
        ("flare_job.py", "flare_client.py", *SHARED),
        r"Round 1 started|Finished FedAvg",
        "flare",
        simulator=True,
    ),
    "flower": Arm(
        "Flower's simulation", ("flower_app.py", *SHARED), r"\[ROUND 2/|Strategy execution finished", "flower"
    ),
}


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Every program with the chosen numbers of sites, in turn; the cases of others stay as they were measured before."""
    become_reaper()
    chosen, steps = ({2: (2, 1)}, 4) if options.quick else ({sites: CASES[sites] for sites in options.sites}, STEPS)
    before = json.loads(options.out.read_text())["cases"] if options.out.is_file() and not options.quick else []
    cases = [one for one in before if one["sites"] not in chosen]
    flower = str(options.flower.absolute())
    with tempfile.TemporaryDirectory() as folder:
        images = draw(Path(folder), max(chosen))
        for sites, (rounds, repeats) in chosen.items():
            turns = [
                {name: one_run(name, flower, images, sites, rounds, steps) for name in ARMS} for _ in range(repeats)
            ]
            for name in ARMS:
                costs = {cost: spread([turn[name][cost] for turn in turns], 3) for cost in turns[0][name]}
                cases.append({"sites": sites, "rounds": rounds, "program": name, **costs})
    return {
        "work": {"steps": steps, "images_of_a_site": IMAGES, "side": SIDE},
        "cases": sorted(cases, key=lambda one: int(one["sites"])),
        "message_bytes": message_bytes(flower),
        "lines": {name: lines_of(*arm.files) for name, arm in ARMS.items()},
        "network_lines": lines_of(*SHARED[:1]),
        "versions_of_flower": output_of([flower, "-c", FLOWER_VERSIONS]),
    }


def draw(folder: Path, sites: int) -> Path:
    """Phantoms as files, with a table of them."""
    with open(folder / "manifest.csv", "w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(("image", "label", "split", "patient", "site"))
        for site in site_names(sites):
            place = phantom_site(site, folder / "drawn", SIDE, IMAGES, labelled=1.0, devices=DEVICES[:1]).parent
            (folder / site).mkdir()
            with np.load(place / IMAGES_FILE) as arrays:
                pictures = arrays["images"]
            for record, pixels in zip(read_manifest(place / MANIFEST_FILE), pictures, strict=True):
                name = f"{site}/{Path(record.image).name}.png"
                Image.fromarray(pixels).save(folder / name)
                writer.writerow((name, record.label, record.split, record.patient, site))
    return folder


def one_run(name: str, flower: str, images: Path, sites: int, rounds: int, steps: int) -> dict[str, float]:
    """Costs of a program and of all processes that it starts.

    Raises:
        SystemExit: if it fails, with its output.
    """
    arm, load = ARMS[name], os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as out:
        numbers = [sites, rounds, steps, out, *([min(sites, MOST_THREADS)] if arm.simulator else [])]
        command = [flower if name == "flower" else sys.executable, PROGRAMS / arm.files[0], images, *numbers]
        environment = {
            **os.environ, "HOME": out, "PYTHONPATH": str(PROGRAMS), "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1",
            "FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0",
        }  # fmt: skip
        before, began = reaped_seconds(), time.perf_counter()
        process = subprocess.Popen(
            list(map(str, command)), env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        lines: list[tuple[float, str]] = []
        seconds: dict[int, float] = {}
        sizes = [0]

        def listen() -> None:
            lines.extend((time.perf_counter() - began, line) for line in process.stdout or ())

        def sample() -> None:
            running = children_of(os.getpid(), recursive=True)
            seconds.update({one: max(seconds.get(one, 0.0), cpu_seconds(one)) for one in running})
            sizes.append(sum(map(proportional_bytes, running)))

        listener = threading.Thread(target=listen, daemon=True)
        listener.start()
        with sampled(sample, SAMPLE_SECONDS):
            status = process.wait()
            wall = time.perf_counter() - began
        end_all()
        listener.join(SECONDS_TO_END)
    text = "".join(line for _, line in lines)
    accuracy = re.search(r"^accuracy ([\d.]+)$", text, re.MULTILINE)
    if status or not accuracy:
        raise SystemExit(f"{arm.title} failed:\n{text[-4000:]}")
    return {
        # A process that nobody waits for is not among the reaped, and of any other the last half second not in the samples.
        "cpu_seconds": max(reaped_seconds() - before, sum(seconds.values())),
        "seconds": wall,
        "seconds_to_first_round": next(moment for moment, line in lines if re.search(arm.first_round, line)),
        "peak_mib": max(sizes) / MEBIBYTE,
        "accuracy": float(accuracy[1]),
        "load": load,
    }


def become_reaper() -> None:
    """Let processes whose parent has ended become ours, so that their time is counted and they are found."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reaped_seconds() -> float:
    found = resource.getrusage(resource.RUSAGE_CHILDREN)
    return found.ru_utime + found.ru_stime


def cpu_seconds(process: int) -> float:
    return told_of(process, lambda found: sum(found.cpu_times()[:2]), 0.0)


def end_all() -> None:
    """Wait for what a program has left running; end it if it does not end by itself."""
    deadline = time.monotonic() + SECONDS_TO_END
    while left := children_of(os.getpid(), recursive=True):
        if time.monotonic() > deadline:
            for process in left:
                told_of(process, lambda found: found.kill(), None)
        with suppress(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
        time.sleep(0.02)


def message_bytes(flower: str) -> dict[str, int]:
    """The model as its tensors, as a message of FLARE and as one of Flower."""
    sys.path.insert(0, str(PROGRAMS))
    state = import_module("network").Network().state_dict()
    nvflare_fobs_initialize()
    fobs.register(TensorDecomposer)
    return {
        "tensors": sum(tensor.nbytes for tensor in state.values()),
        "flare": len(fobs.dumps(dict(state))),
        "flower": output_of([flower, "-c", FLOWER_BYTES, str(PROGRAMS)]),
    }


def lines_of(*files: str) -> int:
    """How long programs are without blank lines, comments and docstrings."""
    return sum(lines_of_code((PROGRAMS / file).read_text()) for file in files)


def lines_of_code(text: str) -> int:
    tree = ast.parse(text)
    documented = [node for node in ast.walk(tree) if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef)]
    docstrings = [node.body[0] for node in documented if ast.get_docstring(node) is not None]
    spoken = {number for node in docstrings for number in range(node.lineno, (node.end_lineno or 0) + 1)}
    lines = ((number, line.strip()) for number, line in enumerate(text.splitlines(), start=1))
    return sum(1 for number, line in lines if line and not line.startswith("#") and number not in spoken)


def tables(result: dict[str, Any]) -> str:
    plain = {one["sites"]: one["cpu_seconds"]["median"] for one in result["cases"] if one["program"] == "plain"}
    rows = []
    for one in result["cases"]:
        arm = ARMS[one["program"]]
        size = 2 * one["sites"] * result["message_bytes"][arm.messages] / 1e6 if arm.messages else None
        beyond = one["cpu_seconds"]["median"] - plain[one["sites"]]
        rows.append({**one, "title": arm.title, "megabytes": size, "beyond": beyond})
    costs = {
        "sites": "sites", "rounds": "rounds", "program": "title", "CPU s": "cpu_seconds.median",
        "lowest": "cpu_seconds.lowest", "highest": "cpu_seconds.highest", "beyond the loop": "beyond",
        "s by the clock": "seconds.median", "s to the end of round 1": "seconds_to_first_round.median",
        "MB a round": "megabytes", "MiB at most": "peak_mib.median", "load": "load.median",
    }  # fmt: skip
    scores = {
        "sites": "sites", "program": "title", "accuracy": "accuracy.median", "lowest": "accuracy.lowest",
        "highest": "accuracy.highest", "runs": "accuracy.count",
    }  # fmt: skip
    written = [
        {"title": arm.title, "all": result["lines"][name], "network": result["network_lines"]}
        for name, arm in ARMS.items()
        if name != "own_flare"
    ]
    lines = {"program": "title", "lines of user code": "all", "of the network": "network"}
    versions = ", ".join(f"{name} {version}" for name, version in result["versions_of_flower"].items())
    parts = (
        table(costs, rows, 1),
        table(scores, rows, 2),
        table(lines, written, 0),
        f"Flower's environment: {versions}.",
    )
    return "\n\n".join(parts)


if __name__ == "__main__":
    run(
        __file__,
        measured,
        tables,
        flower={"type": Path, "required": True, "help": "Python with flwr[simulation]"},
        sites={"type": int, "nargs": "+", "choices": tuple(CASES), "default": tuple(CASES), "help": "cases to measure"},
    )
