"""What a method says at a site, and the pieces of a round that all methods share: networks, optimizers, results."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

import torch
from nvflare.apis.executor import Executor
from nvflare.apis.shareable import Shareable
from torch import nn

from grandrounds.errors import ConfigurationError, MessageError
from grandrounds.federation.aggregation import difference
from grandrounds.federation.site.compute import ComputeOptions
from grandrounds.federation.site.context import SiteContext
from grandrounds.federation.site.store import SiteStore, copy_to_cpu
from grandrounds.federation.site.training import Algorithm, new_optimizer
from grandrounds.models.compute import compile_network
from grandrounds.models.registry import build_model
from grandrounds.options import Options
from grandrounds.privacy.mechanisms.dp_sgd import ProtectionOptions
from grandrounds.protocol.messages import (
    GLOBAL,
    Payload,
    Release,
    ReleaseKind,
    Result,
    State,
    model_update,
    require_like,
)
from grandrounds.protocol.problem import ModelSpec
from grandrounds.protocol.registration import Registration
from grandrounds.protocol.spending import Spending

OPTIMIZER = "optimizer"


@dataclass(frozen=True)
class SiteOptions(Options):
    """Whose model a site trains. A site's ``grandrounds.json`` may choose another backbone, under ``models``."""

    identifies_run: ClassVar[bool] = False

    model: Annotated[
        Literal["shared", "own"], "shared: train the server's model, send the update; own: the site's model stays there"
    ] = "shared"
    optimizer: Annotated[Literal["fresh", "kept"], "fresh in every round, or kept from round to round"] = "fresh"
    backbones: Annotated[dict[str, str] | None, "backbones by site, with model=own; the others take the problem's"] = (
        None
    )
    test_last: Annotated[bool, "with model=own, also test the model of the last round, as own_last"] = False

    def check(self) -> None:
        """Refuse what needs sites to have models of their own."""
        if self.test_last and self.model != "own":
            raise ConfigurationError("test_last tests a site's own model of the last round, which needs model=own")


class SiteHooks(Executor):
    """Implemented by a method's executor; see :class:`~grandrounds.federation.site.executor.SiteExecutor`."""

    releases: ClassVar[Mapping[str, ReleaseKind]] = MappingProxyType({})
    """What leaves the site beside the model update and metrics, by name; a method declares it here."""
    registration_facts: ClassVar[tuple[str, ...]] = ()
    """Names of the short texts that :meth:`register` may tell; a method declares them here."""
    needs_labels = True
    """Whether a site without a labelled training image cannot take part."""
    models: ClassVar[tuple[str, ...]] = ("shared", "own")
    """What the option ``model`` may be."""
    record_level_obstacle: ClassVar[str] = "it has no loss that is a mean over single images"
    """Why a method's training cannot be record-level private; empty where it can."""

    site_options: SiteOptions
    compute: ComputeOptions
    protection: ProtectionOptions
    kept: dict[str, Any]
    """What lasts from one round to the next."""
    _network: tuple[ModelSpec, nn.Module] | None

    def __init_subclass__(cls, **options: Any) -> None:
        """Whoever trains in another way than its base must say itself that this hides single images."""
        super().__init_subclass__(**options)
        if "train" in vars(cls) and not cls.record_level_obstacle and "record_level_obstacle" not in vars(cls):
            cls.record_level_obstacle = SiteHooks.record_level_obstacle

    @property
    def own_model(self) -> bool:
        """Whether the site trains a model of its own."""
        return self.site_options.model == "own"

    # What a method says.

    @abstractmethod
    def train(self, payload: Payload, context: SiteContext) -> Result:
        """Train for one round and return the update, further releases and metrics."""

    def spending(self, context: SiteContext) -> Spending | None:
        """What a round's training costs where it protects single images itself and something leaves; else None."""
        return None

    def register(self, payload: Payload, context: SiteContext) -> Registration:
        """What this site tells of itself before it first takes part, if the method asks; it leaves the site as it is."""
        return Registration()

    def tested_models(self, payload: Payload, context: SiteContext, store: SiteStore) -> dict[str, State]:
        """The models that are tested at the end, by name; their scores leave the site under these names, nothing else.

        ``common`` is the one that the federation selected, ``own`` the one that scored best here or, if none was scored, a
        site's own model as it is, ``own_last`` that of the last round, with ``test_last``.
        """
        common = None if self.own_model else self.starting_state(payload, context)
        last, best = self.kept.get("model"), store.best()
        own_last = last if self.site_options.test_last else None
        models = {"common": common, "own": best[1] if best else last, "own_last": own_last}
        return {name: state for name, state in models.items() if state is not None}

    def on_result_released(self, reply: Shareable, payload: Payload, store: SiteStore) -> None:
        """The answer to a training has left, as the filters have made it: stage the state anew if it depends on that."""

    def state_dict(self) -> dict[str, Any]:
        """What must last from one round to the next: what the method puts into ``self.kept``."""
        return self.kept

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what has lasted; an empty state means the first round here."""
        self.kept = dict(state)

    # What all methods share.

    def starting_model(self, payload: Payload, context: SiteContext) -> nn.Module:
        """The network in training mode with the weights this round starts from."""
        network = self.network(context)
        network.load_state_dict(self.starting_state(payload, context))
        return network.train()

    def starting_state(self, payload: Payload, context: SiteContext) -> State:
        """What this round starts from: the model that was sent, or where sites have models of their own this site's.

        Raises:
            ConfigurationError: if a site with another network than the problem's is sent the problem's trained weights.
            MessageError: if there is no model, or it does not fit.
        """
        if self.own_model:
            if "model" in self.kept:
                return dict(self.kept["model"])
            if GLOBAL not in payload.parts:
                return copy_to_cpu(self.build(context).state_dict())
            if context.own_spec:
                raise ConfigurationError(
                    f"{context.site}: the job starts from weights of {context.problem.backbone}, this site has "
                    f"{context.model_spec.backbone}; set problem.weights to null"
                )
        if GLOBAL not in payload.parts:
            raise MessageError("the task has no global model; executor option model=own needs none")
        require_like(payload.parts[GLOBAL], self.network(context).state_dict(), "the global model")
        return payload.parts[GLOBAL]

    def make_optimizer(
        self, network: nn.Module, learning_rate: float, algorithm: Algorithm = "adam", *, role: str = "", **options: Any
    ) -> torch.optim.Optimizer:
        """An optimizer, fresh or with the state that it had at the end of the last round here.

        Args:
            network: whose parameters it is for.
            learning_rate: of all of them.
            algorithm: ``adam`` or ``sgd``.
            role: tells several optimizers of a method apart.
            options: torch's, such as ``betas``; without them there is no weight decay.
        """
        optimizer = new_optimizer(network.parameters(), algorithm, learning_rate, **options)
        kept = self.kept.get(_optimizer_key(role))
        if kept is not None:
            optimizer.load_state_dict(kept)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate
        return optimizer

    def finish(
        self,
        payload: Payload,
        network: nn.Module,
        optimizer: torch.optim.Optimizer | Mapping[str, torch.optim.Optimizer],
        metrics: Mapping[str, float],
        releases: Mapping[str, Release] = MappingProxyType({}),
    ) -> Result:
        """Turn a trained network into a result: the update of a shared model; an own model is kept.

        Args:
            payload: the task.
            network: as trained.
            optimizer: one, or several by role.
            metrics: what is told; must have ``samples``, the number of training samples.
            releases: what leaves beside the update.
        """
        trained = copy_to_cpu(network.state_dict())
        samples = int(metrics["samples"])
        if self.site_options.optimizer == "kept":
            optimizers = optimizer if isinstance(optimizer, Mapping) else {"": optimizer}
            self.kept.update({_optimizer_key(role): made.state_dict() for role, made in optimizers.items()})
        if self.own_model:
            self.kept["model"] = trained
            return Result(releases, metrics, samples)
        update = model_update(difference(trained, payload.parts[GLOBAL]))
        return Result({**update, **releases}, metrics, samples)

    def build(self, context: SiteContext) -> nn.Module:
        """A network of this site's architecture on the context's device, with the run's initial weights."""
        return build_model(context.model_spec, context.seed).to(context.device)

    def network(self, context: SiteContext) -> nn.Module:
        """The site's one network, built once; its weights are whatever was loaded last, so a teacher needs its own."""
        if self._network is None or self._network[0] != context.model_spec:
            self._network = (context.model_spec, self.build(context))
            if self.compute.compiler != "none":
                compile_network(self._network[1], self.compute.compiler)
        return self._network[1]


def _optimizer_key(role: str) -> str:
    return f"{OPTIMIZER}.{role}" if role else OPTIMIZER
