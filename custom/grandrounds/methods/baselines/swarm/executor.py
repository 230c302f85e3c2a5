"""A site in FLARE's swarm learning: training and testing of this package, in FLARE's messages, and a mean of all sites."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.app_common.aggregators.intime_accumulate_model_aggregator import InTimeAccumulateWeightedAggregator
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.ccwf.common import Constant, make_task_name
from nvflare.app_common.ccwf.swarm_client_ctl import SwarmClientController

from grandrounds.errors import GrandRoundsError
from grandrounds.federation.site.context import SiteContext
from grandrounds.federation.site.store import copy_to_cpu
from grandrounds.methods.mutual.executor import LocalTrainingExecutor
from grandrounds.models.registry import build_model
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
)
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
