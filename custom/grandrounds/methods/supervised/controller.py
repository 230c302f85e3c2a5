"""Controllers of the baselines: federated averaging, and sites that train alone under the same schedule."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, get_type_hints

from grandrounds.errors import ConfigurationError, DataError
from grandrounds.federation.server.averaging import AveragingController
from grandrounds.federation.server.controller import RoundController
from grandrounds.federation.site.store import copy_to_cpu
from grandrounds.federation.site.training import new_optimizer
from grandrounds.methods.supervised.training import TrainingOptions, train_supervised
from grandrounds.models.registry import build_model
from grandrounds.options import require_type
from grandrounds.protocol.messages import GLOBAL, Payload, Result, State

SERVER_TRAINING = "controller.server_training"


class FedAvgController(AveragingController):
    """Federated averaging (McMahan et al., AISTATS 2017) with FedPerl's plain mean by default.

    Args:
        server_training: train the global model on the server's own labelled images at the start of every round, before it
            goes out (FedPerl's scenario in which only the server has labels); the options of
            :class:`~grandrounds.methods.supervised.training.TrainingOptions` that differ from their defaults, or None.
        options: those of :class:`~grandrounds.federation.server.averaging.AveragingController`.
    """

    def __init__(self, *, server_training: dict[str, Any] | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.server_training = None if server_training is None else _training_options(server_training)

    def start(self) -> None:
        """Build the initial model, and look for the server's images if it is to train."""
        super().start()
        if self.server_training and not len(self.server_images(SERVER_TRAINING).data.rows("labelled")):
            raise DataError(f"{SERVER_TRAINING} needs labelled training images at the server, and there is none")

    def open_round(self, sites: list[str]) -> None:
        """Expect updates from these sites, and train at the server what they start from, if that is asked for.

        The global model stays the mean of the sites' models: it is what is scored and selected.
        """
        super().open_round(sites)
        self._server_metrics: dict[str, float] = {}
        if self.server_training:
            self._train_at_server(self.server_training)

    def _train_at_server(self, options: TrainingOptions) -> None:
        images = self.server_images(SERVER_TRAINING)
        network = images.network(self.state).train()
        optimizer = new_optimizer(network.parameters(), options.algorithm, options.learning_rate)
        self._server_metrics = train_supervised(network, optimizer, images.context(self.round_number), options)
        self.sent = copy_to_cpu(network.state_dict())

    def round_notes(self) -> dict[str, Any]:
        """What training at the server has come to."""
        return {"server_training": self._server_metrics} if self._server_metrics else {}

    def fingerprint(self) -> dict[str, Any]:
        """How the server trains, beside the rest."""
        training = self.server_training
        return {
            **super().fingerprint(),
            "server_training": None if training is None else asdict(training),
        }


class LocalController(RoundController):
    """Rounds without an exchange: every site goes on with its own model, and only metrics travel.

    Sites start from the model that federated runs with this seed start from; they build it themselves, unless it has trained
    weights, which only the server can read. Their executor needs ``model: own``.
    """

    def start(self) -> None:
        """Build the initial model if it has trained weights."""
        self._trained: set[str] = set()
        self._initial: State = {}
        if self.problem.weights is not None:
            self._initial = build_model(self.problem.model_spec(pretrained=True), self.seed).state_dict()

    def payload_for(self, site: str) -> Payload:
        """The problem, the round and, until a site has trained, the initial model if it cannot build that itself."""
        return self.payload({GLOBAL: self._initial} if self._initial and site not in self._trained else {})

    def absorb(self, site: str, result: Result) -> None:
        """Note that the site has a model of its own now."""
        self._trained.add(site)

    def state_dict(self) -> dict[str, Any]:
        """Who has trained."""
        return {"trained": sorted(self._trained)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what survived."""
        self._trained = set(state["trained"])

    def close_round(self) -> None:
        """Compute nothing."""

    def model(self) -> None:
        """There is none: each site scores and tests its own."""


def _training_options(given: dict[str, Any]) -> TrainingOptions:
    types = get_type_hints(TrainingOptions)
    unknown = sorted(given.keys() - types.keys())
    if unknown:
        raise ConfigurationError(
            f"{SERVER_TRAINING} has no option {unknown[0]!r}; there are {', '.join(sorted(types))}"
        )
    for option, value in given.items():
        require_type(value, types[option], f"{SERVER_TRAINING}.{option}")
    try:
        return TrainingOptions(**given)
    except ConfigurationError as error:
        raise ConfigurationError(f"{SERVER_TRAINING}: {error}") from error
