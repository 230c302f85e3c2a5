"""What a site has for a run's tasks, found and decoded once per process: images, further data sets, its network."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nvflare.apis.fl_context import FLContext
from nvflare.apis.signal import Signal

from grandrounds.data.site import SiteData
from grandrounds.federation.compute import ComputeOptions, choose_device
from grandrounds.federation.context import SiteContext, StateCache
from grandrounds.federation.messages import Payload
from grandrounds.federation.places import state_folder
from grandrounds.federation.problem import Problem
from grandrounds.federation.site_data import load_checked_data, load_dataset, locate
from grandrounds.federation.site_model import own_model_spec, require_backbones
from grandrounds.models.registry import ModelSpec


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
            DataError: if the data doctor finds something that must be mended first.
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
            chosen = locate(problem.dataset, site, fl_ctx).model
            own_spec = own_model_spec(problem, site, self._own, self._backbones, chosen)
            data = load_checked_data(problem, site, fl_ctx, needs_labels, self._log)
            self._found = _Found(told, problem, data, own_spec)
        return self._found

    def _dataset(self, name: str, problem: Problem, site: str, fl_ctx: FLContext) -> SiteData:
        if (name, problem) not in self._datasets:
            self._datasets[name, problem] = load_dataset(name, problem, site, fl_ctx)
        return self._datasets[name, problem]
