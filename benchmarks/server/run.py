"""What the server does with a round's answers: time and memory for 10, 100 and 1,000 sites and three sizes of models.

1. The mean of updates in order and in random order of arrival, where early ones wait, most of them on disk.
2. FedPerl: the description of a model, the comparison of all models, an anonymised peer of two; a round with its models in
   memory, and with all of them in files: taking them in, describing them, and making the messages of a hundred sites.
3. FedIRM: the mean of relation matrices.
4. A checkpoint of a model.

Updates are synthetic, made one at a time outside the clock: a hundred layers of one kernel and four vectors each. All
sites' updates are really added where ``--most`` allows, else that many, and only the time of the others is extrapolated
(``extrapolated`` says so). Memory is the peak of a process of its own over what it had before, in units of the model;
pages of mapped files that are in use are among it. FedPerl's files take up to eight gibibytes in ``$TMPDIR``. About six
minutes of processor time.

    python -m benchmarks.server.run
    python -m benchmarks.server.run --only kept  # measures these cases again, and keeps the rest of result.json
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import (
    MEBIBYTE,
    Cost,
    arguments_of,
    clocked,
    emit,
    in_child,
    in_turn,
    milliseconds,
    peak_mib,
    report,
    resident_mib,
    spread,
)
from benchmarks.report import Drawing
from grandrounds.evaluation.tables import markdown_table
from grandrounds.federation.aggregation import OrderedMean, apply_update
from grandrounds.federation.checkpoints import CheckpointFolder, TensorFileStore
from grandrounds.methods.fedirm.relation import Relation, mean_relation
from grandrounds.methods.fedperl.model_store import ModelStore
from grandrounds.methods.fedperl.peer_selection import anonymised_peer
from grandrounds.methods.fedperl.similarity import SimilarityTracker, layer_moments, similarity_matrix
from grandrounds.reporting.figures.style import draw_legend, draw_line, label_axes, looks, new_axes

RESULT = Path(__file__).with_name("result.json")
SITES, MILLIONS = (10, 100, 1000), (5, 8, 25)
LAYERS, VECTORS, WIDTH = 100, 4, 128
CLASSES = 7
MAX_ON_DISK = 100
MANY_SMALL = (1, 1000)
NO_LIMIT = 1 << 60


def main() -> None:
    """Measure every case in a process of its own, print tables and write ``result.json``."""
    options = arguments_of(
        __doc__,
        RESULT,
        most={"type": int, "default": 1000, "help": "updates that are really added in a case"},
        case={"choices": sorted(CASES), "help": "measure this case alone and print it"},
        only={"default": "", "help": "measure the cases again whose names begin so, and keep the others"},
        millions={"type": float, "default": 5.0},
        sites={"type": int, "default": 10},
    )
    if options.case:
        torch.set_num_threads(1)
        emit(CASES[options.case](options))
        return
    load = os.getloadavg()[0]
    sites, millions = ((10, 20), (1,)) if options.quick else (SITES, MILLIONS)
    most = 10 if options.quick else options.most
    cases = [
        ("mean_in_order", [(m, n) for m in millions for n in sites]),
        ("mean_in_random_order", [(m, n) for m in millions[:1] for n in sites if n <= MAX_ON_DISK]),
        ("fedperl", [(m, 10) for m in millions]),
        ("comparison", [(millions[0], n) for n in sites]),
        ("checkpoint", [(m, 1) for m in millions]),
        ("kept_in_memory", [(millions[0], n) for n in sites if n <= MAX_ON_DISK]),
        (
            "kept_in_files",
            [*((millions[0], n) for n in sites if n <= MAX_ON_DISK), *([] if options.quick else [MANY_SMALL])],
        ),
    ]
    module = "benchmarks.server.run"
    before = json.loads(options.out.read_text()) if options.only else {}
    result = {
        name: [in_child(module, "--case", name, "--millions", m, "--sites", n, "--most", most) for m, n in pairs]
        for name, pairs in cases
        if name.startswith(options.only)
    }
    result = {**{name: before[name] for name, _ in cases if name in before}, **result}
    print(tables(result))
    report(result, options, load)


def model(millions: float, fill: float | None = None) -> dict[str, Any]:
    """A state of about so many million parameters, filled with a value or with noise."""
    kernel = int(millions * 1e6) // LAYERS - VECTORS * WIDTH
    shapes = {"kernel": kernel, **{f"vector{number}": WIDTH for number in range(VECTORS)}}
    make = torch.rand if fill is None else (lambda size: torch.full((size,), fill))
    return {f"layer{layer}.{name}": make(size) for layer in range(LAYERS) for name, size in shapes.items()}


def size_mib(state: dict[str, Any]) -> float:
    """Mebibytes of a state's tensors."""
    return sum(value.numel() * value.element_size() for value in state.values()) / MEBIBYTE


def mean(options: argparse.Namespace, shuffled: bool) -> dict[str, Any]:
    """Add the updates of a round; the closing of the round and the move of the model are in the peak."""
    state = model(options.millions, 0.0)
    names = [f"site-{number}" for number in range(1, options.sites + 1)]
    arriving = list(names)
    if shuffled:
        random.Random(0).shuffle(arriving)
    before = resident_mib() - size_mib(state)  # the global model counts
    average = OrderedMean(names)
    costs = []
    for name in arriving[: options.most]:
        update = {entry: value + 1.0 for entry, value in state.items()}  # as it comes from the wire
        costs.append(clocked(lambda name=name, update=update: average.add(name, update))[0])
        del update
    adding = round(peak_mib() - before, 1)
    closing, moved = clocked(lambda: apply_update(state, average.close() or {}))
    if abs(float(moved["layer0.kernel"][0]) - 1.0) > 1e-6:
        raise SystemExit("the mean is wrong")
    done = len(costs)
    total = sum(cost.cpu for cost in costs) * options.sites / done
    return {
        "millions": options.millions,
        "sites": options.sites,
        "added": done,
        "extrapolated": done < options.sites,
        "model_mib": round(size_mib(state), 1),
        "milliseconds_per_update": milliseconds(costs),
        "cpu_seconds_of_all": round(total, 3),
        "milliseconds_to_close": milliseconds([closing]),
        "peak_mib_while_adding": adding,
        "peak_mib": round(peak_mib() - before, 1),
        "peak_models_while_adding": round(adding / size_mib(state), 2),
    }


def fedperl(options: argparse.Namespace) -> dict[str, Any]:
    """What FedPerl's server does for one upload."""
    states = [model(options.millions) for _ in range(2)]
    steps: dict[str, Callable[[], Any]] = {
        "description": lambda: layer_moments(states[0], "parameters_and_buffers"),
        "anonymised_peer_of_two": lambda: anonymised_peer(states),
    }
    costs = in_turn(steps, 2 if options.most < 100 else 7)
    return {
        "millions": options.millions,
        "milliseconds": {name: milliseconds(values) for name, values in costs.items()},
    }


def kept(options: argparse.Namespace, limit: int) -> dict[str, Any]:
    """A round of FedPerl at the server with so many bytes for the sites' models: who resembles whom, and all messages."""
    state = model(options.millions, 0.0)
    names = [f"site-{number}" for number in range(1, options.sites + 1)]
    before = resident_mib() - size_mib(state)  # the global model counts
    with tempfile.TemporaryDirectory() as folder:
        store = ModelStore(TensorFileStore(Path(folder)), limit)
        described = SimilarityTracker("parameters_and_buffers", "minmax")
        average = OrderedMean(names)
        taking, describing = list[Cost](), list[Cost]()
        for number, name in enumerate(names):
            update = {entry: value + number for entry, value in state.items()}
            taking.append(clocked(lambda name=name, update=update: take_in(store, average, name, update, state))[0])
            del update
        store.commit(saved=0)
        for name in names:
            describing.append(clocked(lambda name=name: described.describe(name, store.get(name)))[0])
        described.compare()
        state = apply_update(state, average.close() or {})
        without_messages = round(peak_mib() - before, 1)
        messages = [
            store.for_message(anonymised_peer([store.get(names[number - 2]), store.get(names[number - 1])]))
            for number in range(min(options.sites, MAX_ON_DISK))
        ]
        if float(messages[2]["layer0.kernel"][0]) != 0.5:
            raise SystemExit("a peer is wrong")
        return {
            "millions": options.millions,
            "sites": options.sites,
            "model_mib": round(size_mib(state), 1),
            "milliseconds": {"take_in": milliseconds(taking), "describe": milliseconds(describing)},
            "mib_on_disk": round(sum(path.stat().st_size for path in Path(folder).glob("*")) / MEBIBYTE, 1),
            "peak_mib": without_messages,
            "peak_models": round(without_messages / size_mib(state), 2),
            "peak_mib_with_messages": round(peak_mib() - before, 1),
        }


def take_in(store: ModelStore, average: OrderedMean, name: str, update: dict[str, Any], state: dict[str, Any]) -> None:
    """As FedPerl's controller takes in an answer."""
    store.receive(name, 1, apply_update(state, update))
    average.add(name, update)


def comparison(options: argparse.Namespace) -> dict[str, Any]:
    """All pairs of models by their descriptions, and the mean of as many relation matrices."""
    rows = torch.rand(options.sites, 2 * LAYERS * (1 + VECTORS), dtype=torch.float64)
    support = torch.full((CLASSES,), 20)
    relations = [Relation(torch.rand(CLASSES, CLASSES).softmax(dim=1), support) for _ in range(options.sites)]
    steps: dict[str, Callable[[], Any]] = {
        "similarity": lambda: similarity_matrix(rows, "minmax"),
        "relation_mean": lambda: mean_relation(relations),
    }
    costs = in_turn(steps, 2 if options.most < 100 else 7)
    return {"sites": options.sites, "milliseconds": {name: milliseconds(values) for name, values in costs.items()}}


def checkpoint(options: argparse.Namespace) -> dict[str, Any]:
    """Write a model with the run's configuration, flushed to disk, in a folder that keeps the last three."""
    state, costs = model(options.millions), list[Cost]()
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = CheckpointFolder(Path(folder), {"method": "FedAvg"})
        for number in range(3 if options.most < 100 else 6):
            costs.append(clocked(lambda number=number: checkpoints.save(number, {"method": state}))[0])
        kept = sum(path.stat().st_size for path in Path(folder).rglob("*.pt")) / MEBIBYTE
    per_second = [size_mib(state) / cost.wall for cost in costs]
    return {
        "millions": options.millions,
        "milliseconds": milliseconds(costs),
        "mib_per_second": spread(per_second, 1),
        "mib_on_disk": round(kept, 1),
    }


CASES: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "mean_in_order": lambda options: mean(options, shuffled=False),
    "mean_in_random_order": lambda options: mean(options, shuffled=True),
    "fedperl": fedperl,
    "comparison": comparison,
    "checkpoint": checkpoint,
    "kept_in_memory": lambda options: kept(options, NO_LIMIT),
    "kept_in_files": lambda options: kept(options, 0),
}


def tables(result: dict[str, Any]) -> str:
    """The result for a reader."""
    means = [
        [
            *(order, case["millions"], case["sites"], case["added"], _median(case["milliseconds_per_update"])),
            *(case["cpu_seconds_of_all"], case["peak_models_while_adding"], case["peak_mib"]),
        ]
        for order, key in (("sites'", "mean_in_order"), ("random", "mean_in_random_order"))
        for case in result[key]
    ]
    header = ["order", "M parameters", "sites", "added", "ms per update", "s for all", "models in memory", "peak MiB"]
    perl = [
        [case["millions"], *(_median(cost) for cost in case["milliseconds"].values())] for case in result["fedperl"]
    ]
    stored = [
        [
            *(where, case["millions"], case["sites"], *(_median(cost) for cost in case["milliseconds"].values())),
            *(case["mib_on_disk"], case["peak_models"], case["peak_mib"], case["peak_mib_with_messages"]),
        ]
        for where in ("memory", "files")
        for case in result.get(f"kept_in_{where}", [])
    ]
    columns = ["ms to take in", "ms to describe", "MiB on disk", "models in memory", "peak MiB", "with messages"]
    pairs = [
        [case["sites"], *(_median(cost) for cost in case["milliseconds"].values())] for case in result["comparison"]
    ]
    saved = [
        [case["millions"], case["milliseconds"]["wall"]["median"], _median(case["milliseconds"]), case["mib_on_disk"]]
        for case in result["checkpoint"]
    ]
    return "\n\n".join(
        [
            markdown_table(header, means, 2),
            markdown_table(["M parameters", "ms to describe", "ms per anonymised peer"], perl, 1),
            markdown_table(["FedPerl's models in", "M parameters", "sites", *columns], stored, 1),
            markdown_table(["sites", "ms to compare all", "ms per mean relation"], pairs, 2),
            markdown_table(["M parameters", "ms per checkpoint", "of the processor", "MiB kept"], saved, 1),
        ]
    )


def _median(cost: dict[str, dict[str, float]]) -> float:
    return cost["cpu"]["median"]


def drawing(result: dict[str, Any]) -> Drawing:
    """Memory of a round's mean, in models, over the number of sites."""
    figure, axes = new_axes()
    cases = result["mean_in_order"]
    for millions, look in looks([str(case) for case in dict.fromkeys(case["millions"] for case in cases)]).items():
        chosen = [case for case in cases if str(case["millions"]) == millions]
        models = [case["peak_models_while_adding"] for case in chosen]
        draw_line(axes, look, [case["sites"] for case in chosen], models, f"{float(millions):g} M parameters")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_ylim(0, 1.2 * max(case["peak_models_while_adding"] for case in cases))
    label_axes(axes, "sites", "models in memory", "The server's memory while updates come in")
    draw_legend(axes, "lower right")
    return Drawing("memory", "Memory while updates come in", figure)


if __name__ == "__main__":
    main()
