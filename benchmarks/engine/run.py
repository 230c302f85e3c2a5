"""What the engines cost beyond the training itself, in one run on one machine.

1. In one process: FedAvg over ten sites against a bare PyTorch loop that makes the same local updates. The final weights of
   both are compared, so the loop cannot cheat. The parts are repeated in turn; CPU time stands beside wall time.
2. Under ``nvflare simulator`` with as many threads as sites: the time of a round less the longest training in it.
3. A hundred sites in one process: peak memory and time.

    python -m benchmarks.engine.run --workspace runs/engine
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from pathlib import Path
from typing import Any

from benchmarks.measure import clocked, in_child, peak_mib, spread

RESULT = Path(__file__).parent / "result.json"
ROUNDS, STEPS, IMAGE_SIZE = 8, 26, 64


def main() -> None:
    """Measure all three and write ``result.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workspace", type=Path, default=Path("runs/engine"))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--part", choices=["hundred"], help="measure this part alone and print it")
    arguments = parser.parse_args()
    workspace = arguments.workspace.absolute()
    os.environ["GRANDROUNDS_CACHE"] = str(workspace / "cache")
    if arguments.part:
        print(json.dumps(hundred_sites(workspace / "hundred")))
        return
    from benchmarks.processes import machine
    from grandrounds.federation.server.record import versions

    result = {
        "in_process": in_process_overhead(workspace, arguments.repeats),
        "flare_simulator": simulator_overhead(workspace / "flare"),
        "hundred_sites": in_child("benchmarks.engine.run", "--part", "hundred", "--workspace", workspace),
        "versions": versions(),
        "machine": machine(),
    }
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


def in_process_overhead(workspace: Path, repeats: int) -> dict[str, Any]:
    """Time of the engine over time of the bare loop, ten sites, the same weights at the end."""
    import torch

    torch.set_num_threads(1)
    run_job(workspace / "warm", 10, rounds=1)  # draws the phantoms and decodes them
    walls: list[tuple[float, float]] = []
    processor: list[tuple[float, float]] = []
    for repeat in range(repeats):
        place = workspace / f"engine_{repeat}"
        shutil.rmtree(place, ignore_errors=True)
        engine, _ = clocked(lambda place=place: run_job(place, 10, rounds=ROUNDS))
        loop, weights = clocked(lambda: bare_loop(10, ROUNDS))
        saved = torch.load(place / "results" / "last.pt", weights_only=True)
        if not all(torch.equal(saved[name], value) for name, value in weights.items()):
            raise SystemExit("the bare loop and the engine do not give the same weights")
        walls.append((engine.wall, loop.wall))
        processor.append((engine.cpu, loop.cpu))
    return {
        "sites": 10,
        "rounds": ROUNDS,
        "steps": STEPS,
        "image_size": IMAGE_SIZE,
        "engine_over_loop_wall": spread([engine / loop for engine, loop in walls]),
        "engine_over_loop_cpu": spread([engine / loop for engine, loop in processor]),
        "loop_seconds": spread([loop for _, loop in walls]),
    }


def simulator_overhead(workspace: Path) -> dict[str, Any]:
    """Seconds of a round beyond the longest training in it: four sites, four threads, the first round left out."""
    from grandrounds.federation.server.record import read_events

    shutil.rmtree(workspace, ignore_errors=True)
    run_job(workspace, 4, rounds=12, engine="flare", steps=2)
    rounds: dict[int, dict[str, float]] = {}
    for event in read_events(workspace / "results"):
        if event["event"] == "round_end":
            rounds.setdefault(event["round"], {})["round"] = event["round_seconds"]
        elif event["event"] == "answer" and event["task"] == "train":
            entry = rounds.setdefault(event["round"], {})
            entry["train"] = max(entry.get("train", 0.0), event["metrics"]["train_seconds"])
    beyond = [entry["round"] - entry["train"] for number, entry in sorted(rounds.items()) if number > 1]
    return {"sites": 4, "threads": 4, "rounds": len(beyond), "seconds_beyond_training": spread(beyond)}


def hundred_sites(workspace: Path) -> dict[str, Any]:
    """Three rounds of FedPerl over a hundred sites, peers from the second round on."""
    shutil.rmtree(workspace, ignore_errors=True)
    options = ["controller.warm_up=1", "executor.steps=2"]
    cost, _ = clocked(lambda: run_job(workspace, 100, rounds=3, job="fedperl", options=options))
    return {
        "sites": 100,
        "rounds": 3,
        "peak_memory_mib": round(peak_mib()),
        "seconds": cost.wall,
        "cpu_seconds": cost.cpu,
    }


def run_job(
    workspace: Path,
    sites: int,
    rounds: int,
    job: str = "fedavg",
    engine: str = "in-process",
    steps: int = STEPS,
    options: list[str] | None = None,
) -> None:
    """Run a job on phantom sites, without validation, as the bare loop does."""
    from grandrounds.deployment.jobs import load_job, with_options
    from grandrounds.deployment.simulate import choose_sites, simulate

    settings = [
        f"controller.rounds={rounds}",
        "controller.validate_every=0",
        f"problem.image_size={IMAGE_SIZE}",
        f"executor.steps={steps}",
        "executor.cpu_threads=1",
        *(options or []),
    ]
    simulate(with_options(load_job(job), settings), workspace, choose_sites(sites, None)[0], engine=engine)


def bare_loop(sites: int, rounds: int) -> dict[str, Any]:
    """FedAvg as one would write it in a notebook, with the job's data, seeds and settings."""
    import numpy as np
    import torch

    from grandrounds.data.batches import index_batches
    from grandrounds.data.images.views import draw_views, to_tensor
    from grandrounds.data.site import load_site_data, read_site_config
    from grandrounds.deployment.jobs import load_job
    from grandrounds.evaluation.external import predict
    from grandrounds.methods.supervised.loss import median_class_weights, supervised_loss
    from grandrounds.models.registry import build_model
    from grandrounds.protocol.problem import Problem
    from grandrounds.seeding import derive_seed, numpy_generator

    job = load_job("fedavg")
    problem = Problem.from_dict({**job.options("problem"), "image_size": IMAGE_SIZE})
    seed = job.options("controller")["seed"]
    cache = Path(os.environ["GRANDROUNDS_CACHE"])
    names = [f"site-{number}" for number in range(1, sites + 1)]
    data = {}
    for name in names:
        location = read_site_config(cache / "phantom" / name / "grandrounds.json")["phantom"]
        data[name] = load_site_data(location, problem.classes, IMAGE_SIZE, problem.channels, cache)
    network = build_model(problem.model_spec(pretrained=False), seed)
    state = {key: value.clone() for key, value in network.state_dict().items()}
    for number in range(1, rounds + 1):
        total: dict[str, Any] = {}
        for name in names:
            images, labels, rows = data[name].images, data[name].labels, data[name].rows("labelled")
            weights = median_class_weights(torch.from_numpy(np.bincount(labels[rows], minlength=len(problem.classes))))
            network.load_state_dict(state)
            network.train()
            optimizer = torch.optim.Adam(network.parameters(), lr=0.001, fused=True)
            purpose = (seed, "site", name, number)
            batches = index_batches(rows, 16, STEPS, numpy_generator(*purpose, "labelled batches"))
            for step, batch in enumerate(batches):
                views = draw_views(images, batch, "weak", derive_seed(*purpose, "labelled views"), step)
                loss = supervised_loss(network(to_tensor(views)), torch.from_numpy(labels[batch]), weights)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            for key, value in network.state_dict().items():
                if value.is_floating_point():
                    update = value - state[key]
                    total[key] = total[key] + update if key in total else update
        state = {key: value + total[key] / sites if key in total else value for key, value in state.items()}
    network.load_state_dict(state)
    for name in names:  # the job's final test
        predict(network, data[name].images, data[name].rows("test"), torch.device("cpu"))
    return state


if __name__ == "__main__":
    main()
