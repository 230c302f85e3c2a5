"""Measure the server's work on a round's answers: time and memory for 10, 100 and 1,000 sites and three sizes of models.

Updates are synthetic, made one at a time outside the clock: a hundred layers of one kernel and four vectors each. Memory
is the peak of a process of its own over its memory before, in units of the model; pages of mapped files in use are
included. FedPerl's files take up to eight gibibytes in ``$TMPDIR``. A run takes about six minutes of CPU time.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import measure
from benchmarks.measure import Cost, clocked, in_child, in_turn, milliseconds, peak_mib, resident_mib, table
from benchmarks.parties import site_names
from grandrounds.federation.checkpoints import CheckpointFolder, TensorFileStore
from grandrounds.federation.server.means import OrderedMean
from grandrounds.methods.fedirm.relation import Relation, mean_relation
from grandrounds.methods.fedperl.model_store import ModelStore
from grandrounds.methods.fedperl.peer_selection import (
    SimilarityTracker,
    anonymised_peer,
    layer_moments,
    similarity_matrix,
)
from grandrounds.protocol.tensors import apply_update

SITES, MILLIONS = (10, 100, 1000), (5, 8, 25)
LAYERS, VECTORS, WIDTH, CLASSES = 100, 4, 128, 7
MAX_ON_DISK = 100
MANY_SMALL = (1, 1000)
NO_LIMIT = 1 << 60
REPEATS = 7


def measured(options: argparse.Namespace) -> dict[str, Any]:
    sites, millions = ((10, 20), (1,)) if options.quick else (SITES, MILLIONS)
    few = [(millions[0], n) for n in sites if n <= MAX_ON_DISK]
    cases = {
        "mean_in_order": [(m, n) for m in millions for n in sites],
        "mean_in_random_order": few,
        "fedperl": [(m, 10) for m in millions],
        "comparison": [(millions[0], n) for n in sites],
        "checkpoint": [(m, 1) for m in millions],
        "kept_in_memory": few,
        "kept_in_files": few if options.quick else [*few, MANY_SMALL],
    }
    return {
        name: [in_child(f"benchmarks.server.run.{name}", millions=m, sites=n) for m, n in pairs]
        for name, pairs in cases.items()
    }


def model(millions: float, fill: float | None = None) -> dict[str, Any]:
    """A state of about so many million parameters, filled with a value or with noise."""
    kernel = int(millions * 1e6) // LAYERS - VECTORS * WIDTH
    shapes = {"kernel": kernel, **{f"vector{number}": WIDTH for number in range(VECTORS)}}
    make = torch.rand if fill is None else partial(torch.full, fill_value=fill)
    return {f"layer{layer}.{name}": make((size,)) for layer in range(LAYERS) for name, size in shapes.items()}


def size_mib(state: dict[str, Any]) -> float:
    return sum(value.nbytes for value in state.values()) / measure.MEBIBYTE


def files_mib(folder: str) -> float:
    return round(sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file()) / measure.MEBIBYTE, 1)


def mean_in_order(millions: float, sites: int) -> dict[str, Any]:
    """Updates arrive in the order in which they are added."""
    return mean(millions, site_names(sites))


def mean_in_random_order(millions: float, sites: int) -> dict[str, Any]:
    """Updates that arrive early wait, most of them on disk."""
    return mean(millions, random.Random(0).sample(site_names(sites), sites))


def mean(millions: float, arriving: list[str]) -> dict[str, Any]:
    """Add the updates of a round; the end of the round and the update of the model are in the peak."""
    state, names = model(millions, 0.0), site_names(len(arriving))
    before = resident_mib() - size_mib(state)  # the global model counts
    average, costs = OrderedMean(names), list[Cost]()
    for name in arriving:
        update = {entry: value + 1.0 for entry, value in state.items()}  # as it comes from the wire
        costs.append(clocked(partial(average.add, name, update))[0])
        del update
    adding = round(peak_mib() - before, 1)
    moved = apply_update(state, average.close() or {})
    if abs(float(moved["layer0.kernel"][0]) - 1.0) > 1e-6:
        raise SystemExit("the mean is wrong")
    return {
        "millions": millions,
        "sites": len(names),
        "added": len(names),
        "model_mib": round(size_mib(state), 1),
        "milliseconds_per_update": milliseconds(costs),
        "cpu_seconds_of_all": round(sum(cost.cpu for cost in costs), 3),
        "peak_mib": round(peak_mib() - before, 1),
        "peak_models_while_adding": round(adding / size_mib(state), 2),
    }


def fedperl(millions: float, sites: int) -> dict[str, Any]:
    states = [model(millions) for _ in range(2)]
    steps = {
        "description": lambda: layer_moments(states[0], "parameters_and_buffers"),
        "anonymised_peer_of_two": lambda: anonymised_peer(states),
    }
    costs = in_turn(steps, REPEATS)
    return {"millions": millions, "milliseconds": {name: milliseconds(values) for name, values in costs.items()}}


def kept_in_memory(millions: float, sites: int) -> dict[str, Any]:
    return kept(millions, sites, NO_LIMIT)


def kept_in_files(millions: float, sites: int) -> dict[str, Any]:
    return kept(millions, sites, 0)


def kept(millions: float, sites: int, limit: int) -> dict[str, Any]:
    """A round of FedPerl at the server with this limit in bytes for the sites' models: similarity, and all messages."""
    state, names = model(millions, 0.0), site_names(sites)
    before = resident_mib() - size_mib(state)  # the global model counts
    with tempfile.TemporaryDirectory() as folder:
        store = ModelStore(TensorFileStore(Path(folder)), limit)
        described = SimilarityTracker("parameters_and_buffers", "minmax")
        average = OrderedMean(names)
        taking, describing = list[Cost](), list[Cost]()

        def take_in(name: str, update: dict[str, Any]) -> None:  # as FedPerl's controller does
            store.receive(name, 1, apply_update(state, update))
            average.add(name, update)

        for number, name in enumerate(names):
            update = {entry: value + number for entry, value in state.items()}
            taking.append(clocked(partial(take_in, name, update))[0])
            del update
        store.commit(saved=0)
        for name in names:
            describing.append(clocked(lambda name=name: described.describe(name, store.get(name)))[0])
        described.compare()
        state = apply_update(state, average.close() or {})
        without_messages = round(peak_mib() - before, 1)
        messages = [
            store.for_message(anonymised_peer([store.get(names[number - 2]), store.get(names[number - 1])]))
            for number in range(min(sites, MAX_ON_DISK))
        ]
        if float(messages[2]["layer0.kernel"][0]) != 0.5:
            raise SystemExit("a peer is wrong")
        return {
            "millions": millions,
            "sites": sites,
            "model_mib": round(size_mib(state), 1),
            "milliseconds": {"take_in": milliseconds(taking), "describe": milliseconds(describing)},
            "mib_on_disk": files_mib(folder),
            "peak_mib": without_messages,
            "peak_models": round(without_messages / size_mib(state), 2),
            "peak_mib_with_messages": round(peak_mib() - before, 1),
        }


def comparison(millions: float, sites: int) -> dict[str, Any]:
    """All pairs of models by their descriptions, and the mean of as many relation matrices."""
    rows = torch.rand(sites, 2 * LAYERS * (1 + VECTORS), dtype=torch.float64)
    support = torch.full((CLASSES,), 20)
    relations = [Relation(torch.rand(CLASSES, CLASSES).softmax(dim=1), support) for _ in range(sites)]
    steps = {
        "similarity": lambda: similarity_matrix(rows, "minmax"),
        "relation_mean": lambda: mean_relation(relations),
    }
    costs = in_turn(steps, REPEATS)
    return {"sites": sites, "milliseconds": {name: milliseconds(values) for name, values in costs.items()}}


def checkpoint(millions: float, sites: int) -> dict[str, Any]:
    """Write a model with the run's configuration, flushed to disk, in a folder that keeps the last three."""
    state = model(millions)
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = CheckpointFolder(Path(folder), {"method": "FedAvg"})
        costs = [clocked(partial(checkpoints.save, number, {"method": state}))[0] for number in range(6)]
        return {"millions": millions, "milliseconds": milliseconds(costs), "mib_on_disk": files_mib(folder)}


MEAN_COLUMNS = {
    "order": "order", "M parameters": "millions", "sites": "sites", "added": "added",
    "ms per update": "milliseconds_per_update.cpu.median", "s for all": "cpu_seconds_of_all",
    "models in memory": "peak_models_while_adding", "peak MiB": "peak_mib",
}  # fmt: skip
STORED_COLUMNS = {
    "FedPerl's models in": "where", "M parameters": "millions", "sites": "sites",
    "ms to take in": "milliseconds.take_in.cpu.median", "ms to describe": "milliseconds.describe.cpu.median",
    "MiB on disk": "mib_on_disk", "models in memory": "peak_models", "peak MiB": "peak_mib",
    "with messages": "peak_mib_with_messages",
}  # fmt: skip
PEER_COLUMNS = {
    "M parameters": "millions",
    "ms to describe": "milliseconds.description.cpu.median",
    "ms per anonymised peer": "milliseconds.anonymised_peer_of_two.cpu.median",
}
PAIR_COLUMNS = {
    "sites": "sites",
    "ms to compare all": "milliseconds.similarity.cpu.median",
    "ms per mean relation": "milliseconds.relation_mean.cpu.median",
}
SAVED_COLUMNS = {
    "M parameters": "millions", "ms per checkpoint": "milliseconds.wall.median",
    "of the processor": "milliseconds.cpu.median", "MiB kept": "mib_on_disk",
}  # fmt: skip


def tables(result: dict[str, Any]) -> str:
    orders = {"mean_in_order": "sites'", "mean_in_random_order": "random"}
    means = [{**case, "order": order} for key, order in orders.items() for case in result[key]]
    stored = [{**case, "where": where} for where in ("memory", "files") for case in result[f"kept_in_{where}"]]
    parts: Sequence[tuple[Mapping[str, str], list[dict[str, Any]], int]] = (
        *((MEAN_COLUMNS, means, 2), (PEER_COLUMNS, result["fedperl"], 1), (STORED_COLUMNS, stored, 1)),
        *((PAIR_COLUMNS, result["comparison"], 2), (SAVED_COLUMNS, result["checkpoint"], 1)),
    )
    return "\n\n".join(table(*part) for part in parts)


if __name__ == "__main__":
    measure.run(__file__, measured, tables)
