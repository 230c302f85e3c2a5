"""Controllers of federated averaging, and of local training under the same schedule."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any, ClassVar

from grandrounds.errors import ConfigurationError, DataError
from grandrounds.federation.server.averaging import AveragingController
from grandrounds.federation.server.controller import RoundController
from grandrounds.federation.site.store import copy_to_cpu
from grandrounds.federation.site.training import new_optimizer, parameter_groups
from grandrounds.methods.supervised.training import TrainingOptions, train_supervised
from grandrounds.models.partial import frozen_digest
from grandrounds.models.registry import build_model
from grandrounds.options import Options, take_options
from grandrounds.protocol.messages import GLOBAL, Payload, Result, State

SERVER_TRAINING_OPTION = "controller.server_training"


@dataclass(frozen=True)
class ServerTrainingOptions(Options):
    """Training at the server, in FedPerl's scenario in which only the server has labels."""

    server_training: Annotated[
        dict[str, Any] | None, "options of supervised training at the server before each round; null does not train"
    ] = None

    def check(self) -> None:
        """Check the options of the training."""
        self.training()

    def training(self) -> TrainingOptions | None:
        """The options of training, with defaults for those not given; None without training."""
        if self.server_training is None:
            return None
        try:
            options, unknown = take_options(TrainingOptions, self.server_training)
        except ConfigurationError as error:
            raise ConfigurationError(f"{SERVER_TRAINING_OPTION}.{error}") from error
        if unknown:
            known = ", ".join(sorted(field.name for field in fields(TrainingOptions)))
            raise ConfigurationError(f"{SERVER_TRAINING_OPTION} has no option {min(unknown)!r}; there are {known}")
        return options


class FedAvgController(AveragingController):
    """Federated averaging (McMahan et al., AISTATS 2017) with FedPerl's plain mean by default."""

    needs_exclusive: ClassVar[bool] = False
    server_options: ServerTrainingOptions

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.server_training = self.server_options.training()

    def start(self) -> None:
        """Build the initial model, and load the server's images if it trains."""
        super().start()
        if self.server_training and not len(self.server_images(SERVER_TRAINING_OPTION).data.rows("labelled")):
            raise DataError(f"{SERVER_TRAINING_OPTION} needs labelled training images at the server, and there is none")

    def open_round(self, sites: list[str]) -> None:
        """Expect updates from these sites, and train the model that they start from at the server, if configured.

        The global model that is scored and selected stays the mean of the sites' models.
        """
        super().open_round(sites)
        self._server_metrics: dict[str, float] = {}
        if self.server_training:
            self._train_at_server(self.server_training)

    def _train_at_server(self, options: TrainingOptions) -> None:
        images = self.server_images(SERVER_TRAINING_OPTION)
        network = images.network(self.state).train()
        optimizer = new_optimizer(
            parameter_groups(network, options.head_rate), options.algorithm, options.rate_of(self.round_number)
        )
        self._server_metrics = train_supervised(network, optimizer, images.context(self.round_number), options)
        self.sent = copy_to_cpu(network.state_dict())

    def round_notes(self) -> dict[str, Any]:
        """The metrics of training at the server."""
        trained = {"server_training": self._server_metrics} if self._server_metrics else {}
        return {**super().round_notes(), **trained}

    def fingerprint(self) -> dict[str, Any]:
        """The options of server training, beside those of the base."""
        training = self.server_training
        return {**super().fingerprint(), "server_training": None if training is None else asdict(training)}


class LocalController(RoundController):
    """Local training: every site keeps its own model, and only metrics travel. The executor needs ``model: own``.

    Sites start from the same initial model as federated runs with this seed. They build it themselves unless it has
    pretrained weights, which only the server can read.
    """

    needs_exclusive: ClassVar[bool] = False

    def start(self) -> None:
        """Build the initial model if it has pretrained weights."""
        self._trained: set[str] = set()
        self._initial: State = {}
        if self.problem.weights is not None:
            network = build_model(self.problem.model_spec(pretrained=True), self.seed)
            self._initial, self.frozen_digest = network.state_dict(), frozen_digest(network)

    def payload_for(self, site: str) -> Payload:
        """The problem and the round; pretrained weights until the site has trained."""
        return self.payload({GLOBAL: self._initial} if self._initial and site not in self._trained else {})

    def absorb(self, site: str, result: Result) -> None:
        """Note that the site has a model of its own."""
        self._trained.add(site)

    def state_dict(self) -> dict[str, Any]:
        """The sites that have trained."""
        return {"trained": sorted(self._trained)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore :meth:`state_dict`."""
        self._trained = set(state["trained"])

    def close_round(self) -> None:
        """Compute nothing."""

    def model(self) -> None:
        """None: each site scores and tests its own."""
