"""Which network a site trains: the job's, or where sites have models of their own the one chosen for it.

What a site has for a run's tasks, found and decoded once per process: images, further data sets, its network.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from nvflare.apis.fl_context import FLContext
from nvflare.apis.signal import Signal

from grandrounds.data.site import ModelOverride, SiteData
from grandrounds.errors import ConfigurationError
from grandrounds.federation.paths import state_folder
from grandrounds.federation.site.compute import ComputeOptions, choose_device
from grandrounds.federation.site.context import SiteContext, StateCache
from grandrounds.federation.site.data import load_checked_data, load_dataset, locate
from grandrounds.models.registry import minimum_image_size, require_buildable
from grandrounds.protocol.messages import Payload
from grandrounds.protocol.problem import ModelSpec, Problem


def require_backbones(backbones: Mapping[str, str], own: bool) -> None:
    """Check a job's table of backbones by site.

    Args:
        backbones: names of the registry by site; empty where all have the problem's.
        own: whether sites have models of their own.

    Raises:
        ConfigurationError: if a name is unknown, or sites share a model.
    """
    if backbones and not own:
        raise ConfigurationError("backbones gives sites networks of their own, which needs model=own")
    for site, backbone in backbones.items():
        try:
            minimum_image_size(backbone)
        except ConfigurationError as error:
            raise ConfigurationError(f"backbones: {site}: {error}") from error


def own_model_spec(
    problem: Problem, site: str, own: bool, backbones: Mapping[str, str], chosen: ModelOverride | None
) -> ModelSpec | None:
    """The network that a site has for itself.

    Args:
        problem: what is learnt, with the network of those that choose nothing.
        site: the site's name.
        own: whether sites have models of their own.
        backbones: the job's choice by site.
        chosen: the site's own choice, which overrides the job's.

    Returns:
        The network; None if it is the problem's.

    Raises:
        ConfigurationError: naming the file or the option, if the choice does not exist, does not fit the problem's images,
            or differs where all sites share one model.
    """
    shared = problem.model_spec(pretrained=False)
    spec, where = shared, f"executor.backbones: {site}"
    if own and site in backbones:
        spec = _changed(spec, {"backbone": backbones[site]}, where)
    if chosen is not None:
        where = chosen.where
        spec = _changed(spec, chosen.changes, where)
    if spec == shared:
        return None
    if not own:
        raise ConfigurationError(
            f"{where} asks for {_described(spec)}, but all sites of this job share one model, {_described(shared)}; remove "
            "the entry, or run a job with model=own"
        )
    least = minimum_image_size(spec.backbone)
    if problem.image_size < least:
        raise ConfigurationError(
            f"{where}: backbone {spec.backbone} needs images of at least {least} pixels, the job's problem.image_size is "
            f"{problem.image_size}; choose a smaller backbone"
        )
    return spec


def _changed(spec: ModelSpec, changes: Mapping[str, Any], where: str) -> ModelSpec:
    try:
        changed = replace(spec, **changes)
        require_buildable(changed)
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from error
    return changed


def _described(spec: ModelSpec) -> str:
    start = "" if spec.weights is None else ", weights of its own"
    return f"{spec.backbone} (norm {spec.norm}, dropout {'its own' if spec.dropout is None else spec.dropout}{start})"


@dataclass(frozen=True)
class _Found:
    told: Mapping[str, Any]
    problem: Problem
    data: SiteData
    own_spec: ModelSpec | None


class SiteAccess:
    """Makes the context of each task.

    Args:
        own: whether sites have models of their own.
        backbones: the job's choice of backbones by site.
        compute: how the site computes.
        log: for what the data doctor warns of.

    Raises:
        ConfigurationError: if the backbones do not exist, or sites share a model.
    """

    def __init__(self, own: bool, backbones: Mapping[str, str], compute: ComputeOptions, log: logging.Logger) -> None:
        require_backbones(backbones, own)
        self._own, self._backbones = own, dict(backbones)
        self._compute, self._log = compute, log
        self._found: _Found | None = None
        self._datasets: dict[tuple[str, Problem], SiteData] = {}

    def context(self, payload: Payload, fl_ctx: FLContext, abort_signal: Signal, needs_labels: bool) -> SiteContext:
        """What a task needs to know.

        Args:
            payload: the task.
            fl_ctx: FLARE's context of the site.
            abort_signal: of the task.
            needs_labels: whether a site without a labelled training image is refused.

        Raises:
            ConfigurationError: if the site does not define the data set, or its network does not fit.
            DataError: if the data doctor finds something that must be fixed first.
        """
        values = payload.values
        site = fl_ctx.get_identity_name()
        found = self._find(values["problem"], site, fl_ctx, needs_labels)
        return SiteContext(
            site=site,
            round_number=payload.round_number,
            problem=found.problem,
            seed=values["seed"],
            data=found.data,
            device=choose_device(self._compute.device),
            precision=self._compute.precision,
            aborted=lambda: bool(abort_signal.triggered),
            cache=StateCache(state_folder(fl_ctx, values["run_name"], site) / "received"),
            own_spec=found.own_spec,
            datasets=lambda name: self._dataset(name, found.problem, site, fl_ctx),
        )

    def _find(self, told: Mapping[str, Any], site: str, fl_ctx: FLContext, needs_labels: bool) -> _Found:
        if self._found is None or self._found.told != told:
            problem = Problem.from_dict(told)
            require_buildable(problem.model_spec(pretrained=False), problem.image_size)
            chosen = locate(problem.dataset, site, fl_ctx).model
            own_spec = own_model_spec(problem, site, self._own, self._backbones, chosen)
            data = load_checked_data(problem, site, fl_ctx, needs_labels, self._log)
            self._found = _Found(told, problem, data, own_spec)
        return self._found

    def _dataset(self, name: str, problem: Problem, site: str, fl_ctx: FLContext) -> SiteData:
        if (name, problem) not in self._datasets:
            self._datasets[name, problem] = load_dataset(name, problem, site, fl_ctx)
        return self._datasets[name, problem]
