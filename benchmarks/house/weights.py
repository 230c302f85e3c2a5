"""Digests of what every job computes, with every preset: whether a change of the code has changed a bit.

Each study runs on drawn images at four sites, for four rounds, at the smallest sizes, with a fixed seed, in one process.

PYTHONPATH=../before/custom python -m benchmarks.house.weights --out before.json   # goes on where it was interrupted
python -m benchmarks.house.weights --out after.json
python -m benchmarks.house.weights compare before.json after.json
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

SITES, ROUNDS = 4, 4
SMALLEST: Mapping[str, Any] = {
    "controller.rounds": ROUNDS,
    "controller.sites_per_round": None,
    "executor.steps": 2,
    "executor.batch_size": 8,
    "executor.local_epochs": 0.25,
    "executor.pretrain_epochs": 0.25,
    "controller.distillation_steps": 2,
    "executor.noise_source": "seeded",
}
SIDES = {"compact": 32, "resnet12": 32, "resnet22": 128}
SIDE = 64
PACKAGED = "efficientnet_lite0"
"""The network whose ImageNet weights a package holds; others start from random weights."""
Digests = dict[str, str]


def main() -> None:
    if sys.argv[1:2] == ["compare"]:
        raise SystemExit(compared(*(json.loads(Path(path).read_text()) for path in sys.argv[2:4])))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the digests; only what it lacks is run")
    parser.add_argument("--only", default="", help="studies whose name begins so")
    arguments = parser.parse_args()
    digests = json.loads(arguments.out.read_text()) if arguments.out.is_file() else {}
    torch.set_num_threads(1)
    os.environ["GRANDROUNDS_REFERENCE"] = "0"
    for name in studies():
        if name.startswith(arguments.only) and "error" in digests.get(name, {"error": ""}):
            digests[name] = in_child(name)
            print(name, round(sum(os.times()[2:4])), digests[name], flush=True)
            arguments.out.write_text(json.dumps(digests, indent=1, sort_keys=True) + "\n")


def compared(before: dict[str, Digests], after: dict[str, Digests]) -> int:
    """Print what differs between two files; how many studies of both differ."""
    for name in sorted(before.keys() ^ after.keys()):
        print(f"{name}: only {'before' if name in before else 'after'}")
    differing = [name for name in sorted(before.keys() & after.keys()) if before[name] != after[name]]
    for name in differing:
        print(
            f"{name}: differs in {', '.join(key for key in before[name] if before[name][key] != after[name].get(key))}"
        )
    print(f"{len(before.keys() & after.keys()) - len(differing)} studies are the same, {len(differing)} differ")
    return len(differing)


def studies() -> list[str]:
    """Every job that comes with the package, and every preset of it: ``fedavg``, ``fedavg/paper``."""
    from grandrounds.deployment.jobs import job_names, load_job
    from grandrounds.deployment.presets import presets_of

    return [
        study for name in job_names() for study in (name, *(f"{name}/{each}" for each in presets_of(load_job(name))))
    ]


def in_child(study: str) -> Digests:
    """The digests of a study, made in a forked process."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=_send, args=(study, sender))
    child.start()
    found: Digests = receiver.recv()
    child.join()
    return found


def _send(study: str, sender: Any) -> None:
    try:
        found = digests_of(study)
    except Exception as error:  # a job that needs what this machine lacks is the same before and after
        found = {"error": f"{type(error).__name__}: {error}"[:300]}
    sender.send(found)


def digests_of(study: str) -> Digests:
    """Run a study and digest the server's weights, those of the sites, the predictions and the moments of images."""
    import grandrounds as gr
    from grandrounds.deployment.jobs import load_job
    from grandrounds.deployment.presets import with_preset

    name, _, preset = study.partition("/")
    job = with_preset(load_job(name), preset or None)
    options = {f"{part}.{option}" for part in ("controller", "executor") for option in job.options(part)}
    backbone = job.value("problem", "backbone")
    start = {} if backbone == PACKAGED else {"problem.weights": None}
    with tempfile.TemporaryDirectory() as folder:
        gr.run(
            name,
            SITES,
            preset=preset or None,
            image_size=SIDES.get(backbone, SIDE),
            options={key: value for key, value in SMALLEST.items() if key in options} | start,
            workspace=folder,
            progress=False,
            execution=gr.Execution(workers=1),
        )
        results, state = Path(folder) / "results", Path(folder) / "state"
        moments = json.loads((results / "summary.json").read_text()).get("image_moments")
        return {
            "server": digest(sorted(line for path in results.glob("*.pt") for line in tensors(path))),
            "sites": digest(sorted({line for path in state.glob("*/site-*/**/*.pt") for line in tensors(path)})),
            "predictions": digest(path.read_text() for path in sorted(results.glob("site-*/predictions_*.csv"))),
            "moments": digest([json.dumps(moments)]),
        }


def digest(texts: Any) -> str:
    made = hashlib.sha256()
    for text in texts:
        made.update(text.encode())
    return made.hexdigest()[:16]


def tensors(path: Path) -> Iterator[str]:
    """A line for each tensor in a file: the last part of its name, its type, its shape and the digest of its values."""
    yield from _tensors(torch.load(path, map_location="cpu", weights_only=False), "")


def _tensors(content: Any, name: str) -> Iterator[str]:
    if isinstance(content, torch.Tensor):
        values = content.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        yield f"{name} {content.dtype} {tuple(content.shape)} {hashlib.sha256(values).hexdigest()}\n"
    elif isinstance(content, Mapping):
        for key, value in content.items():
            yield from _tensors(value, str(key))
    elif isinstance(content, list | tuple):
        for value in content:
            yield from _tensors(value, name)


if __name__ == "__main__":
    main()
