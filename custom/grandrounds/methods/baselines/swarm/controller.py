"""The server's part in swarm learning: it sends the configuration, and waits for the end. No model reaches it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Annotated, Any

from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.signal import Signal
from nvflare.app_common.ccwf.swarm_server_ctl import SwarmServerController

from grandrounds.errors import ConfigurationError
from grandrounds.federation.server.record import RunRecord
from grandrounds.methods.baselines.swarm.executor import CONFIGURATION
from grandrounds.models.registry import require_buildable
from grandrounds.option_annotations import BASIC, Min
from grandrounds.options import Configurable, Options
from grandrounds.protocol.messages import require_run_name
from grandrounds.protocol.names import SERVER
from grandrounds.protocol.paths import state_folder
from grandrounds.protocol.problem import Problem


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
