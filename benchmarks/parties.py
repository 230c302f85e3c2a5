"""Jobs for measurements of the federation itself: parties that compute next to nothing, and a clock of the rounds.

The jobs name these classes by their paths, so they run only where the repository's root can be imported: in one process.
"""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.app_event_type import AppEventType
from torch import nn

from benchmarks.measure import Cost, bytes_written, resident_mib
from grandrounds.data.partition.phantom_site import phantom_site
from grandrounds.deployment.jobs import Job, load_job
from grandrounds.deployment.presets import with_options
from grandrounds.deployment.simulate import simulate
from grandrounds.federation.server.averaging import AveragingController
from grandrounds.federation.site.context import SiteContext
from grandrounds.federation.site.executor import SiteExecutor
from grandrounds.federation.site.store import SiteStore
from grandrounds.methods.supervised.executor import SupervisedExecutor
from grandrounds.protocol.messages import Payload, Result, State, model_update

HERE = "benchmarks.parties"
ENTRY = 1 << 21
TRAIN_CPU = "train_cpu_seconds"
QUIET = ("controller.validate_every=0", "problem.image_size=32", "executor.cpu_threads=1", "executor.device=cpu")
SMALL_TRAINING = (*QUIET, "executor.steps=2", "executor.batch_size=4")


class RoundClock(FLComponent):
    """Records the time, the resident memory and the bytes that this process has written at the start of every round."""

    def __init__(self) -> None:
        super().__init__()
        self.starts: list[Cost] = []
        self.resident: list[float] = []
        self.written: list[int] = []
        CLOCKS.append(self)

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """FLARE's hook."""
        if event_type == AppEventType.ROUND_STARTED:
            self.starts.append(Cost(time.perf_counter(), time.process_time()))
            self.resident.append(resident_mib())
            self.written.append(bytes_written())

    def rounds(self) -> list[Cost]:
        """The cost of each round with checkpoint and record, but not of the first, in which sites load images."""
        pairs = zip(self.starts[1:-1], self.starts[2:], strict=True)
        return [Cost(after.wall - before.wall, after.cpu - before.cpu) for before, after in pairs]


CLOCKS: list[RoundClock] = []
"""FLARE creates the clocks; a script finds the last one here."""


class TrivialController(AveragingController):
    """Averages a vector, which no network has."""

    def __init__(self, *, parameters: int, **options: Any) -> None:
        super().__init__(**options)
        self.parameters = parameters

    def start(self) -> None:
        """Begin with zeros."""
        self.state = {name: torch.zeros(count) for name, count in entries(self.parameters).items()}


class TrivialExecutor(SiteExecutor):
    """Answers with an update without training."""

    needs_labels = False

    def __init__(self, *, parameters: int, **options: Any) -> None:
        super().__init__(**options)
        self.parameters = parameters

    def build(self, context: SiteContext) -> nn.Module:
        """A network with that vector, and without memory for it."""
        return nn.ParameterDict(
            {name: torch.empty(count, device="meta") for name, count in entries(self.parameters).items()}
        )

    def train(self, payload: Payload, context: SiteContext) -> Result:
        """Add one to everything, by an update that all sites of the process have in common."""
        return Result(model_update(_ones(self.parameters)), {}, 1)

    def tested_models(self, payload: Payload, context: SiteContext, store: SiteStore) -> dict[str, State]:
        """None: there is no network."""
        return {}


@cache
def _ones(count: int) -> State:
    return {name: torch.ones(length) for name, length in entries(count).items()}


def entries(count: int) -> dict[str, int]:
    """The entries of a vector, by name: of at most ``ENTRY`` numbers, as layers of large networks are."""
    return {f"w{start // ENTRY}": min(ENTRY, count - start) for start in range(0, count, ENTRY)}


class ClockedExecutor(SupervisedExecutor):
    """Supervised training that also reports its CPU time."""

    def train(self, payload: Payload, context: SiteContext) -> Result:
        """Train and report."""
        before = time.process_time()
        result = super().train(payload, context)
        return replace(result, metrics={**result.metrics, TRAIN_CPU: time.process_time() - before})


def trivial_job(parameters: int, rounds: int) -> Job:
    job = trained_job(rounds)
    executor = {
        "path": f"{HERE}.TrivialExecutor",
        "args": {"parameters": parameters, "cpu_threads": 1, "device": "cpu"},
    }
    job.client["executors"][0]["executor"] = executor
    controller = job.server["workflows"][0]
    controller |= {"path": f"{HERE}.TrivialController", "args": {"parameters": parameters, **controller["args"]}}
    controller["args"].pop("server_training")
    return job


def trained_job(rounds: int, *options: str) -> Job:
    """Federated averaging of the network ``compact``, with a clock of the training and one of the rounds."""
    job = copy.deepcopy(with_options(load_job("fedavg"), [f"controller.rounds={rounds}", *QUIET, *options]))
    job.client["executors"][0]["executor"]["path"] = f"{HERE}.ClockedExecutor"
    job.server["components"] = [{"id": "clock", "path": f"{HERE}.RoundClock", "args": {}}]
    return job


def site_names(count: int) -> list[str]:
    return [f"site-{number}" for number in range(1, count + 1)]


def one_set_of_images(folder: Path, size: int = 32, images: int = 60) -> Path:
    """A folder whose ``grandrounds.json`` gives the same phantoms to every site."""
    return phantom_site("site-1", folder, size=size, images=images).parent


def run_clocked(job: Job, folder: Path, sites: Sequence[str], images: Path) -> tuple[RoundClock, dict[str, Any]]:
    """Run a job in this process, in ``folder/run``: its round clock and its summary."""
    os.environ["GRANDROUNDS_CACHE"] = str(folder / "cache")
    torch.set_num_threads(1)
    CLOCKS.clear()
    summary = simulate(job, folder / "run", list(sites), images, allow_overlap=True)
    return CLOCKS[-1], summary
