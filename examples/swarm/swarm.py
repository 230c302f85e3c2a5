"""FLARE's swarm learning with this package's training: in each round another site averages the weights of all.

The server sends the configuration and waits for the end; no model reaches it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.app_common.aggregators.intime_accumulate_model_aggregator import InTimeAccumulateWeightedAggregator
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.ccwf.common import Constant, make_task_name
from nvflare.app_common.ccwf.swarm_client_ctl import SwarmClientController
from nvflare.app_common.ccwf.swarm_server_ctl import SwarmServerController

from grandrounds.errors import ConfigurationError, GrandRoundsError
from grandrounds.federation.server.record import RunRecord
from grandrounds.federation.site.context import SiteContext
from grandrounds.federation.site.store import copy_to_cpu
from grandrounds.methods.mutual.executor import LocalTrainingExecutor
from grandrounds.models.registry import build_model, require_buildable
from grandrounds.options import BASIC, Configurable, Min, Options
from grandrounds.protocol.messages import (
    GLOBAL,
    TEST,
    TRAIN,
    UPDATE,
    Payload,
    ReleaseKind,
    Result,
    State,
    floating_entries,
    model_update,
    require_like,
    require_run_name,
)
from grandrounds.protocol.names import SERVER
from grandrounds.protocol.paths import state_folder
from grandrounds.protocol.problem import Problem
from grandrounds.protocol.tensors import apply_update, difference
from grandrounds.protocol.wire import decode_result, encode_payload

CONFIGURATION = "grandrounds"
"""Entry of the swarm's configuration that holds the problem, the seed, the run's name and the rounds."""
SWARM_POLL_SECONDS = 0.05


class SwarmExecutor(LocalTrainingExecutor):
    """Trains the mean of all sites' weights on the site's labels; in the last round it tests that mean and hands it back.

    The first round starts from the run's initial weights, the same at all sites.
    """

    releases: ClassVar[Mapping[str, ReleaseKind]] = MappingProxyType({UPDATE: ReleaseKind.MODEL_UPDATE})
    models: ClassVar[tuple[str, ...]] = ("shared",)

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """FLARE's hook: a round of the swarm, as a task of this package."""
        payload = _payload(shareable, fl_ctx)
        model = payload.parts[GLOBAL]
        last = payload.round_number == payload.values["rounds"]
        reply = super().execute(TEST if last else TRAIN, encode_payload(payload), fl_ctx, abort_signal)
        if reply.get_return_code() != ReturnCode.OK:
            return reply
        result = decode_result(reply, payload)
        self.log_info(fl_ctx, f"round {payload.round_number}: {dict(result.metrics)}")
        weights = model if result.update is None else apply_update(model, result.update)
        # All sites count alike: the "steps" are the weights of FLARE's mean.
        meta = {MetaKey.NUM_STEPS_CURRENT_ROUND: 1}
        # FLARE's streaming refuses other layouts than contiguous ones.
        return DXO(DataKind.WEIGHTS, data=copy_to_cpu(floating_entries(weights)), meta=meta).to_shareable()

    def train(self, payload: Payload, context: SiteContext) -> Result:
        """Train on the site's labels."""
        number, rounds = context.round_number, payload.values["rounds"]
        network = self.starting_model(payload, context)
        metrics = self.train_round(network, number == 1, number - 1, rounds - 1, context)
        update = model_update(difference(copy_to_cpu(network.state_dict()), payload.parts[GLOBAL]))
        return Result(update, metrics, len(context.data.rows("labelled")))


class SwarmAggregator(InTimeAccumulateWeightedAggregator):
    """FLARE's weighted mean, only of all sites.

    FLARE's swarm counts a site's answer when it comes, before its weights are added: a mean that is made in that moment
    would lack them without a notice.

    Args:
        patience: seconds after the last answer in which its weights must have been added.
    """

    def __init__(self, *, patience: float = 60.0) -> None:
        super().__init__(expected_data_kind=DataKind.WEIGHTS)
        self.patience = patience
        self._added = 0

    def accept(self, shareable: Shareable, fl_ctx: FLContext) -> bool:
        """FLARE's hook: add a site's weights."""
        accepted = bool(super().accept(shareable, fl_ctx))
        self._added += accepted
        return accepted

    def aggregate(self, fl_ctx: FLContext) -> Shareable:
        """FLARE's hook: the mean, as soon as it is of all sites.

        Raises:
            GrandRoundsError: if the weights of a site are missing.
        """
        sites, deadline = len(_swarm(fl_ctx).trainers), time.monotonic() + self.patience
        while self._added < sites:
            if time.monotonic() > deadline:
                raise GrandRoundsError(f"only {self._added} of {sites} sites are in the mean of the swarm")
            time.sleep(SWARM_POLL_SECONDS)
        self._added = 0
        return super().aggregate(fl_ctx)


def _swarm(fl_ctx: FLContext) -> SwarmClientController:
    """FLARE's part of the swarm at this site, which has the server's configuration."""
    runner = fl_ctx.get_prop(FLContextKey.RUNNER)
    return runner.find_executor(make_task_name(Constant.TN_PREFIX_SWARM, Constant.BASENAME_CONFIG))


def _payload(shareable: Shareable, fl_ctx: FLContext) -> Payload:
    """A round of the swarm as a task: the mean of the last round, or in the first the initial weights.

    Raises:
        MessageError: if the mean does not fit the problem's network.
    """
    values = _swarm(fl_ctx).get_config_prop(CONFIGURATION)
    initial = build_model(
        Problem.from_dict(values["problem"]).model_spec(pretrained=False), values["seed"]
    ).state_dict()
    received: State = from_shareable(shareable).data or {}
    if received:
        require_like(received, floating_entries(initial), "the mean of the swarm")
    task = {"run_id": fl_ctx.get_job_id(), "selection_metric": "accuracy", "checkpoints": [], "validate": False}
    return Payload(
        shareable.get_header(AppConstants.CURRENT_ROUND) + 1, {**values, **task}, {GLOBAL: {**initial, **received}}
    )


@dataclass(frozen=True)
class SwarmOptions(Options):
    """A swarm and its deadlines."""

    rounds: Annotated[int, "rounds of the swarm", Min(2), BASIC]
    run_name: Annotated[str, "name of the folder of the run's files"] = "swarm"
    min_sites: Annotated[int, "minimum number of sites", Min(2), BASIC] = 2
    seed: Annotated[int, "seed of all random choices except which site averages", BASIC] = 1
    start_timeout: Annotated[float, "seconds in which the sites must be ready and the first of them begin"] = 300.0
    round_timeout: Annotated[float, "seconds without progress after which the swarm ends"] = 3600.0


class SwarmController(Configurable, SwarmServerController):
    """FLARE's swarm learning on the problem of a job: a substitute for SL-FedL, of which there is no public code.

    In each round one site, drawn in the round before, averages the weights of all. The last round only delivers. Sites
    reach each other through FLARE, without the privacy gate, so it runs in FLARE's simulator with as many threads as sites,
    and not with kits that have this project's overlay. The swarm begins when all sites are ready, and ends when one of them
    is lost: FLARE sends the configuration once, and a site that was not ready then never answers.

    Args:
        problem: what is learnt; see :class:`~grandrounds.protocol.problem.Problem`.
        options: those of :class:`SwarmOptions`.
    """

    swarm: SwarmOptions

    def __init__(self, *, problem: dict[str, Any], **options: Any) -> None:
        self.take_groups(options)
        self.problem = Problem.from_dict(problem)
        require_buildable(self.problem.model_spec(pretrained=False), self.problem.image_size)
        if self.problem.weights is not None:
            raise ConfigurationError("problem.weights must be null: the server sends no model")
        super().__init__(
            num_rounds=self.swarm.rounds,
            configure_task_timeout=int(self.swarm.start_timeout),
            start_task_timeout=int(self.swarm.start_timeout),
            progress_timeout=int(self.swarm.round_timeout),
            # FLARE counts from its own start, and sites report only when they train.
            max_status_report_interval=int(self.swarm.start_timeout + self.swarm.round_timeout),
        )
        # FLARE's two seconds are too few for sites that are at work, and there is no argument for it.
        self.end_workflow_timeout = int(self.swarm.start_timeout)
        self.rounds = self.swarm.rounds
        self.min_sites = self.swarm.min_sites
        self.run_name = require_run_name(self.swarm.run_name)
        self.seed = self.swarm.seed
        self._reason = ""

    def start_controller(self, fl_ctx: FLContext) -> None:
        """FLARE's hook.

        Raises:
            ConfigurationError: if sites cannot send each other messages, or are too few.
        """
        if fl_ctx.get_prop(FLContextKey.WORKFLOW) is None:
            raise ConfigurationError(
                "swarm learning needs sites that reach each other; run it with --engine flare or nvflare simulator"
            )
        super().start_controller(fl_ctx)
        if len(self.participating_clients) < self.min_sites:
            raise ConfigurationError(
                f"min_sites is {self.min_sites}, and there are {len(self.participating_clients)} sites"
            )

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """FLARE's hook: wait for the swarm, and leave a record of how it ended."""
        configuration = {"method": type(self).__name__, "problem": self.problem.to_dict(), "rounds": self.rounds}
        record = RunRecord(state_folder(fl_ctx, self.run_name, SERVER), {**configuration, "seed": self.seed})
        started = time.monotonic()
        super().control_flow(abort_signal, fl_ctx)
        failed = self._reason or ("FLARE's abort signal was triggered" if abort_signal.triggered else "")
        if not failed:
            # Who answered in a round, and when it ended, is known to the sites alone.
            seconds = round((time.monotonic() - started) / self.rounds, 4)
            entry = {"asked": [], "answered": [], "dropped": {}, "round_seconds": seconds}
            record.rounds = [{"round": number, **entry} for number in range(1, self.rounds + 1)]
            record.selected = {"round": self.rounds - 1}
        record.write("failed" if failed else "finished", failed)

    def system_panic(self, reason: str, fl_ctx: FLContext) -> None:
        """FLARE's hook: note why the swarm has failed."""
        self._reason = reason
        super().system_panic(reason, fl_ctx)

    def prepare_config(self) -> dict[str, Any]:
        """FLARE's hook: the configuration of all sites, the problem included."""
        configuration = {
            "problem": self.problem.to_dict(),
            "seed": self.seed,
            "run_name": self.run_name,
            "rounds": self.rounds,
        }
        return {**super().prepare_config(), CONFIGURATION: configuration}
