"""Measure the bytes between the server and a site in a round of every method, by the run's own record.

Four sites of phantoms, the network ``compact``, three rounds with minimal training, which changes no byte. The traffic of
MDH-FL grows with its public images, here 240. All sites have labels, so FedIRM's relation matrix (classes times classes)
stays at its site. The result has the round with the most tensors in each direction. Headers and scores are not in the
record; the size of a model in FLARE's serialisation is measured separately. A run takes about a minute of CPU time.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from nvflare.app_opt.pt.decomposers import TensorDecomposer
from nvflare.fuel.utils import fobs
from nvflare.private.fed.utils.fed_utils import nvflare_fobs_initialize

from benchmarks.measure import run, table
from benchmarks.parties import site_names
from grandrounds.deployment.jobs import Job, load_job
from grandrounds.deployment.presets import parsed, with_preset
from grandrounds.deployment.simulate import simulate
from grandrounds.federation.server.record import read_events
from grandrounds.models.registry import build_model
from grandrounds.protocol.messages import GLOBAL, Payload, tensor_bytes
from grandrounds.protocol.problem import ModelSpec
from grandrounds.protocol.wire import encode_payload

SITES, ROUNDS = 4, 3
COMMON = (f"controller.rounds={ROUNDS}", "executor.device=cpu", "executor.cpu_threads=1", "controller.validate_every=0")
STEPS = ("executor.steps=1", "executor.batch_size=4")
ALIGNED = ("executor.iterations=4", "executor.pace=2", "executor.warm_up=0")
SMALL = json.dumps({name: "compact" for name in site_names(SITES)})
MUTUAL = ("executor.pretrain_epochs=0.1", "executor.local_epochs=0.1", f"executor.backbones={SMALL}")
PEERS = ("controller.warm_up=1", "executor.threshold=0.26")
# A row of the table, its job (with a preset) and its options.
CASES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "local": ("local", STEPS),
    "fedavg": ("fedavg", STEPS),
    "fedavg, half precision": ("fedavg", (*STEPS, "controller.update_precision=float16")),
    "ssfl": ("ssfl", STEPS),
    "fedperl, anonymised peer": ("fedperl", (*STEPS, *PEERS)),
    "fedperl, two peers": ("fedperl", (*STEPS, *PEERS, "controller.anonymise=false")),
    "fedirm": ("fedirm", (*STEPS, "controller.unlabelled_start=1")),
    "fed": ("fed_align_cl:fed", ALIGNED),
    "fed_align_cl": ("fed_align_cl", ALIGNED),
    "mdhfl": ("mdhfl", MUTUAL),
    "mdhfl, half precision": ("mdhfl", (*MUTUAL, "executor.wire=fp16", "controller.wire=fp16")),
    "rhfl": ("mdhfl:rhfl", MUTUAL),
}


def measured(options: argparse.Namespace) -> dict[str, Any]:
    chosen = ("fedavg",) if options.quick else tuple(CASES)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["GRANDROUNDS_CACHE"] = str(Path(folder) / "cache")
        methods = {name: bytes_of(name, *CASES[name], Path(folder)) for name in chosen}
    return {"sites": SITES, "model": serialised(), "methods": methods}


def bytes_of(name: str, job: str, more: tuple[str, ...], folder: Path) -> dict[str, Any]:
    """Bytes per site, of the round with most of them each way, and the parts of what travels in the whole run."""
    workspace = folder / name.replace(" ", "_").replace(",", "")
    source, _, preset = job.partition(":")
    loaded = load_job(source)
    configured = with_preset(loaded, preset or None, parsed(loaded, accepted(loaded, [*COMMON, *more])))
    summary = simulate(configured, workspace, site_names(SITES))
    ends = [event for event in read_events(workspace / "results") if event["event"] == "round_end"]
    moved = {way: [0, *(end["moved"][way] for end in ends)] for way in ("down", "up")}
    most = {way: max(after - before for before, after in pairwise(sums)) / SITES for way, sums in moved.items()}
    return {
        **{f"{way}_bytes": round(size) for way, size in most.items()},
        "parts": sorted({part for parts in summary["bytes"].values() for part in parts}),
    }


def accepted(job: Job, assignments: list[str]) -> list[str]:
    known = {f"{part}.{option}" for part in ("controller", "executor", "problem") for option in job.options(part)}
    return [text for text in assignments if text.partition("=")[0] in known]


def serialised() -> dict[str, int]:
    """A model's tensors, and the bytes of the message that carries it."""
    state = build_model(ModelSpec("compact", 4), seed=1).state_dict()
    nvflare_fobs_initialize()
    fobs.register(TensorDecomposer)
    message = encode_payload(Payload(1, {"run_id": "x"}, {GLOBAL: state}))
    return {
        "parameters": sum(value.numel() for value in state.values()),
        "tensor_bytes": tensor_bytes({GLOBAL: state})[GLOBAL],
        "message_bytes": len(fobs.dumps(message)),
    }


def tables(result: dict[str, Any]) -> str:
    model, cases = result["model"]["tensor_bytes"], []
    for name, case in result["methods"].items():
        down, up = case["down_bytes"], case["up_bytes"]
        sizes = {"KiB down": down / 1024, "KiB up": up / 1024, "models down": down / model, "models up": up / model}
        cases.append({"job": name, **sizes, "parts": " ".join(case["parts"])})
    return table({name: name for name in cases[0]}, cases, 2)


if __name__ == "__main__":
    run(__file__, measured, tables)
