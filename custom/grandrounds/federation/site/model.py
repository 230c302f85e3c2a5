"""Whose model a site trains: the federation's, whose update it sends, or one of its own, which stays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Protocol
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from grandrounds.checks import reraised_as
from grandrounds.data.site import ModelOverride, SiteData
from grandrounds.errors import ConfigurationError, MessageError
from grandrounds.federation.site.context import SiteContext
from grandrounds.federation.site.options import SiteOptions
from grandrounds.federation.site.scoring import write_model
from grandrounds.federation.site.store import SiteStore, copy_to_cpu
from grandrounds.models.norm_layers import use_statistics
from grandrounds.models.partial import frozen_digest
from grandrounds.models.registry import architecture_fingerprint, require_buildable
from grandrounds.models.site_model import OWN
from grandrounds.models.split import compile_network
from grandrounds.protocol.messages import (
    FROZEN,
    GLOBAL,
    SITE_MODEL,
    UPDATE,
    Payload,
    Release,
    ReleaseKind,
    Result,
    State,
    floating_entries,
    model_update,
    require_like,
)
from grandrounds.protocol.problem import SITE_NORM, ModelSpec, Problem
from grandrounds.protocol.spending import Spending, TrainingGate
from grandrounds.protocol.tensors import difference

ARCHITECTURE_FACTS = ("backbone", "architecture")
KEPT = "model"
"""Name of a site's own model in what an executor keeps from round to round."""


class SiteModel(Protocol):
    """The model that a site trains; by default no part of it is checked, and nothing leaves."""

    releases: Mapping[str, ReleaseKind] = MappingProxyType({})
    """What a training releases of the model."""

    def require_shared(self, otherwise: str) -> None:
        """Refuse, in these words, a model of the site's own.

        Raises:
            ConfigurationError: then.
        """
        return

    def require_own(self, otherwise: str) -> None:
        """Refuse, in these words, a model that sites share.

        Raises:
            ConfigurationError: then.
        """
        return

    def spec(self, problem: Problem, site: str, chosen: ModelOverride | None) -> ModelSpec | None:
        """The network that a site has for itself; None if it is the problem's.

        Args:
            problem: with the network of sites without a choice.
            site: the site's name.
            chosen: the site's own choice.

        Raises:
            ConfigurationError: naming the file or the option, if the choice does not exist, does not fit the problem's
                images, or differs where all sites share one model.
        """
        ...

    def facts(self, context: SiteContext) -> dict[str, str]:
        """What a site says of its network when it joins."""
        return {}

    def require_received(self, payload: Payload, context: SiteContext) -> None:
        """Refuse, before images are read, a received model that does not fit.

        Raises:
            MessageError: then.
        """
        return

    def hides_failures(self, gate: TrainingGate) -> bool:
        """Whether a training that fails gives an answer like any other."""
        ...

    def spending(self, of_training: Callable[[], Spending | None]) -> Spending | None:
        """What a round's training costs, as far as it leaves."""
        return None

    def is_begun(self, kept: Mapping[str, Any]) -> bool:
        """Whether there is a model before this round's training."""
        return True

    def start(self, payload: Payload, context: SiteContext, kept: Mapping[str, Any]) -> State:
        """What a round starts from.

        Raises:
            ConfigurationError: if a site with another network than the problem's is sent the problem's trained weights.
            MessageError: if there is no model, or it does not fit.
        """
        ...

    def finish(self, trained: State, payload: Payload, kept: dict[str, Any]) -> dict[str, Release]:
        """Keep a trained model or release its update."""
        ...

    def nothing_learnt(self, payload: Payload) -> Result:
        """The result in place of a training that has failed."""
        return Result()

    def tested(self, start: Callable[[], State], kept: Mapping[str, Any], store: SiteStore) -> dict[str, State]:
        """The models that are tested at the end, by name; ``start`` gives what the task starts from."""
        ...

    def write(
        self, name: str, state: State, network: nn.Module, context: SiteContext, store: SiteStore
    ) -> dict[str, Release]:
        """Write a tested model to the site's folder where it is the site's; return what may leave of it."""
        ...


class SharedModel(SiteModel):
    """The federation's model: each round starts from what was sent, and its update leaves.

    Args:
        network: of a task, with whatever weights.
    """

    releases: Mapping[str, ReleaseKind] = MappingProxyType({UPDATE: ReleaseKind.MODEL_UPDATE})

    def __init__(self, network: Callable[[SiteContext], nn.Module]) -> None:
        self._network = network

    def require_own(self, otherwise: str) -> None:
        """It is not."""
        raise ConfigurationError(otherwise)

    def spec(self, problem: Problem, site: str, chosen: ModelOverride | None) -> None:
        """The problem's; a site may choose no other."""
        shared = problem.model_spec(pretrained=False)
        spec = _changed(shared, chosen.changes, chosen.where) if chosen else shared
        if chosen and spec != shared:
            raise ConfigurationError(
                f"{chosen.where} asks for {_described(spec)}, but all sites of this job share one model, "
                f"{_described(shared)}; remove the entry, or run a job with model=own"
            )

    def require_received(self, payload: Payload, context: SiteContext) -> None:
        """Statistics of a site's own images cannot be compared before these are read."""
        if GLOBAL in payload.parts and context.model_spec.norm != SITE_NORM:
            _require_fitting(payload, self._network(context), context)

    def hides_failures(self, gate: TrainingGate) -> bool:
        """Where the gate hides them."""
        return gate.hides_failures

    def spending(self, of_training: Callable[[], Spending | None]) -> Spending | None:
        """All that the training costs."""
        return of_training()

    def start(self, payload: Payload, context: SiteContext, kept: Mapping[str, Any]) -> State:
        """The model that was sent."""
        return _received(payload, context, self._network)

    def finish(self, trained: State, payload: Payload, kept: dict[str, Any]) -> dict[str, Release]:
        """The difference to what was sent."""
        return model_update(difference(trained, payload.parts[GLOBAL]))

    def nothing_learnt(self, payload: Payload) -> Result:
        """An update that changes nothing."""
        received = floating_entries(payload.parts[GLOBAL])
        return Result(model_update({name: torch.zeros_like(value) for name, value in received.items()}), {}, 1)

    def tested(self, start: Callable[[], State], kept: Mapping[str, Any], store: SiteStore) -> dict[str, State]:
        """``common``, which the federation has selected, and ``own``, which scored best here."""
        best = store.best()
        return {"common": start(), **({OWN: best[1]} if best else {})}

    def write(
        self, name: str, state: State, network: nn.Module, context: SiteContext, store: SiteStore
    ) -> dict[str, Release]:
        """Written where it has the statistics of the site's images; nothing leaves."""
        if context.model_spec.norm == SITE_NORM:
            write_model(name, state, network, context, store)
        return {}


class OwnModel(SiteModel):
    """A model of the site's own, which stays there from round to round.

    Args:
        options: with the job's choice of backbones, and what is tested and released at the end.
        network: of a task, with whatever weights.
        build: makes a network with the run's initial weights.
    """

    def __init__(
        self,
        options: SiteOptions,
        network: Callable[[SiteContext], nn.Module],
        build: Callable[[SiteContext], nn.Module],
    ) -> None:
        self._options, self._network, self._build = options, network, build

    def require_shared(self, otherwise: str) -> None:
        """It is not."""
        raise ConfigurationError(otherwise)

    def spec(self, problem: Problem, site: str, chosen: ModelOverride | None) -> ModelSpec | None:
        """The site's choice overrides the job's."""
        shared = problem.model_spec(pretrained=False)
        spec, where = shared, f"executor.backbones: {site}"
        if site in (backbones := self._options.backbones or {}):
            spec = _changed(spec, {"backbone": backbones[site]}, where)
        if chosen is not None:
            where = chosen.where
            spec = _changed(spec, chosen.changes, where)
        if spec == shared:
            return None
        try:
            require_buildable(spec, problem.image_size)
        except ConfigurationError as error:
            raise ConfigurationError(f"{where}: {error}; choose another backbone") from error
        return spec

    def facts(self, context: SiteContext) -> dict[str, str]:
        """Its backbone and the fingerprint of its entries."""
        values = context.model_spec.backbone, architecture_fingerprint(self._network(context).state_dict())
        return dict(zip(ARCHITECTURE_FACTS, values, strict=True))

    def hides_failures(self, gate: TrainingGate) -> bool:
        """Where the gate counts updates."""
        return gate.counts_updates

    def is_begun(self, kept: Mapping[str, Any]) -> bool:
        """Once it was trained."""
        return KEPT in kept

    def start(self, payload: Payload, context: SiteContext, kept: Mapping[str, Any]) -> State:
        """The site's model; before the first training what was sent, or else the run's initial weights."""
        if KEPT in kept:
            return dict(kept[KEPT])
        if GLOBAL not in payload.parts:
            return copy_to_cpu(self._build(context).state_dict())
        if context.own_spec:
            raise ConfigurationError(
                f"{context.site}: the job starts from weights of {context.problem.backbone}, this site has "
                f"{context.model_spec.backbone}; set problem.weights to null"
            )
        return _received(payload, context, self._network)

    def finish(self, trained: State, payload: Payload, kept: dict[str, Any]) -> dict[str, Release]:
        """Keep it; nothing leaves."""
        kept[KEPT] = trained
        return {}

    def tested(self, start: Callable[[], State], kept: Mapping[str, Any], store: SiteStore) -> dict[str, State]:
        """``own``, which scored best here (if none was scored, the last); ``own_last`` with ``test_last``."""
        last, best = kept.get(KEPT), store.best()
        models = {OWN: best[1] if best else last, "own_last": last if self._options.test_last else None}
        return {name: state for name, state in models.items() if state is not None}

    def write(
        self, name: str, state: State, network: nn.Module, context: SiteContext, store: SiteStore
    ) -> dict[str, Release]:
        """Always written; with ``release_model`` the one that is ``own`` leaves."""
        content = write_model(name, state, network, context, store)
        released = self._options.release_model and name == OWN
        return {SITE_MODEL: Release(ReleaseKind.SITE_MODEL, content)} if released else {}


def model_named(
    options: SiteOptions, network: Callable[[SiteContext], nn.Module], build: Callable[[SiteContext], nn.Module]
) -> SiteModel:
    """The model that a job's options ask for; arguments as of :class:`OwnModel`."""
    return OwnModel(options, network, build) if options.model == OWN else SharedModel(network)


def _received(payload: Payload, context: SiteContext, network: Callable[[SiteContext], nn.Module]) -> State:
    if GLOBAL not in payload.parts:
        raise MessageError("the task has no global model; executor option model=own needs none")
    _require_fitting(payload, network(context), context)
    return payload.parts[GLOBAL]


def _require_fitting(payload: Payload, network: nn.Module, context: SiteContext) -> None:
    require_like(payload.parts[GLOBAL], network.state_dict(), "the global model")
    wanted = payload.values.get(FROZEN)
    if wanted is not None and wanted != frozen_digest(network):
        raise MessageError(
            f"the frozen layers of {context.model_spec.backbone} differ from the server's: problem.weights "
            f"{context.model_spec.weights!r} is another file here; compare `grandrounds weights list` at both places"
        )


def _changed(spec: ModelSpec, changes: Mapping[str, Any], where: str) -> ModelSpec:
    with reraised_as(None, ConfigurationError, where=where):
        changed = replace(spec, **changes)
        if "weights" in changes:
            changed = replace(changed, load_weights=True)
        elif changed.backbone != spec.backbone and not spec.has_frozen:
            changed = replace(changed, weights=None)
        require_buildable(changed)
    return changed


def _described(spec: ModelSpec) -> str:
    start = ", weights of its own" if spec.load_weights else ""
    return f"{spec.backbone} (norm {spec.norm}, dropout {'its own' if spec.dropout is None else spec.dropout}{start})"


_shared: WeakValueDictionary[tuple[Any, ...], nn.Module] = WeakValueDictionary()


class SharedNetwork:
    """Finds or builds the network of a task. Sites of one process work one after the other, each loads its own weights.

    Args:
        compiler: torch's, or ``none``.
        build: makes a network for a task; methods with another ``build`` share none.
    """

    def __init__(self, compiler: str, build: Callable[[SiteContext], nn.Module]) -> None:
        self._compiler, self._build = compiler, build
        self._held: tuple[tuple[Any, ...], nn.Module] | None = None
        self._statistics: tuple[SiteData, dict[str, Tensor]] | None = None

    def of(self, context: SiteContext) -> nn.Module:
        """The network of the context's architecture on its device; its weights are whatever was loaded last.

        With ``problem.norm=site`` it has the statistics of the site's training images.
        """
        network = self._network(context)
        if context.model_spec.norm == SITE_NORM:
            from grandrounds.models.adaptation import site_statistics  # if a job asks

            if self._statistics is None or self._statistics[0] is not context.data:
                of = context.data.images, context.data.rows("train")
                statistics = site_statistics(context.model_spec, context.seed, *of, context.device)
                self._statistics = context.data, statistics
            use_statistics(network, self._statistics[1])
        return network

    def _network(self, context: SiteContext) -> nn.Module:
        kind = getattr(self._build, "__func__", self._build)
        key = (context.model_spec, context.seed, context.device, self._compiler, kind)
        if self._held is None or self._held[0] != key:
            network = _shared.get(key)
            if network is None:
                _shared[key] = network = self._build(context)
                if self._compiler != "none":
                    compile_network(network, self._compiler)
            self._held = key, network
        return self._held[1]


def forget_networks() -> None:
    """Share nothing with runs that this process has had before: the files of frozen layers may have changed."""
    _shared.clear()
