"""What a site has for the tasks of a run, found, decoded once per process and examined: images, data sets, its network."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from nvflare.apis.fl_context import FLContext
from nvflare.apis.signal import Signal

from grandrounds.checks import reraised_as
from grandrounds.data.fitness import examine_run, require_healthy
from grandrounds.data.images.ahead import ViewsAhead
from grandrounds.data.images.tensors import HeldImages
from grandrounds.data.keys import KEY_RULE, RULE_VALUE
from grandrounds.data.location import locate, locate_public
from grandrounds.data.site import ModelOverride, SiteData, load_site_data
from grandrounds.errors import ConfigurationError, DataError, GrandRoundsError
from grandrounds.federation.site.context import SiteContext, StateCache, Unread, choose_device
from grandrounds.federation.site.options import ComputeOptions
from grandrounds.federation.site.outcomes import gate_of, require_room
from grandrounds.models.registry import require_buildable
from grandrounds.protocol.messages import Payload
from grandrounds.protocol.paths import cache_folder, data_folders, in_kit, state_folder
from grandrounds.protocol.problem import MIN_STATISTICS_IMAGES, SITE_NORM, ModelSpec, Problem
from grandrounds.protocol.tasks import SINGLE


def load_checked_data(
    problem: Problem, site: str, fl_ctx: FLContext, needs_labels: bool, log: logging.Logger, trains: bool = True
) -> SiteData:
    """Load the problem's data set at this site.

    The data set ``phantom`` needs no files: a site without a ``grandrounds.json`` draws its own synthetic images.

    Raises:
        ConfigurationError: if the site does not define the data set.
        DataError: if something must be fixed first, see :mod:`~grandrounds.data.fitness`.
    """
    cache = cache_folder(fl_ctx)
    location = locate(problem.dataset, site, data_folders(fl_ctx), cache_folder(fl_ctx))
    with reraised_as(None, GrandRoundsError, where=site):
        data = load_site_data(location, problem, cache)
    findings = examine_run(data, site, needs_labels, trains)
    for finding in findings:
        if finding.level == "warning":
            log.warning("%s", finding.message)
    require_healthy(findings)
    count = len(data.rows("train"))
    if trains and problem.norm == SITE_NORM and count < MIN_STATISTICS_IMAGES:
        raise DataError(
            f"{site}: problem.norm=site takes the statistics of {MIN_STATISTICS_IMAGES} training images or more, labelled "
            f"or not, and there are {count}; add images, or set problem.norm to frozen"
        )
    return data


def load_dataset(name: str, problem: Problem, site: str, fl_ctx: FLContext) -> SiteData:
    """Load a data set beside the problem's, in the problem's image format: every row of it, with or without labels.

    Rows of it mean the same at several sites, so none may be missing.

    Raises:
        ConfigurationError: if the site does not define the data set.
        DataError: if an image cannot be read, or the manifest is not as it must be.
    """
    cache = cache_folder(fl_ctx)
    location = replace(locate(name, site, data_folders(fl_ctx), cache), max_unreadable=0.0)
    with reraised_as(None, GrandRoundsError, where=f"{site}: data set {name!r}"):
        return load_site_data(location, replace(problem, task=SINGLE.name), cache, foreign_labels=True)


def require_other_images(public: SiteData, private: SiteData, where: str) -> None:
    """Check that no public image is also a private one, by their decoded pixels.

    Raises:
        ConfigurationError: naming the first public image that is.
    """
    known = {_digest(image) for image in private.images}
    for name, image in zip(public.names, public.images, strict=True):
        if _digest(image) in known:
            raise ConfigurationError(f"{where}: public image {name!r} is also an image of the private data set")


def _digest(image: NDArray[np.uint8]) -> bytes:
    return hashlib.sha256(np.ascontiguousarray(image).tobytes()).digest()


OwnSpec = Callable[[Problem, str, ModelOverride | None], ModelSpec | None]


@dataclass
class _Found:
    values: Mapping[str, Any]
    problem: Problem
    own_spec: ModelSpec | None
    data: SiteData | None = None


def require_same_rule(asked: Any, site: str) -> None:
    """Refuse a server that makes keys of names by another rule; one that states none is older than the rule.

    Raises:
        ConfigurationError: naming the site and both rules.
    """
    if asked not in (None, KEY_RULE):
        raise ConfigurationError(
            f"{site} makes keys of the names of classes and patients by rule {KEY_RULE}, the server by rule {asked}; "
            "install the same version of grandrounds at both"
        )


class SiteAccess:
    """Makes the context of each task, first without images: what is wrong until then, no image has caused.

    Args:
        spec: of a site's own network for a problem and the site's choice; None if it is the problem's.
        compute: how the site computes.
        log: for what the data doctor warns of.
    """

    def __init__(self, spec: OwnSpec, compute: ComputeOptions, log: logging.Logger) -> None:
        self._spec, self._compute, self._log = spec, compute, log
        self._found: _Found | None = None
        self._held: HeldImages | None = None
        self._datasets: dict[tuple[str, Problem], SiteData] = {}

    def without_images(self, payload: Payload, fl_ctx: FLContext, abort_signal: Signal) -> SiteContext:
        """The context of a task before the site's manifest and images are read.

        Raises:
            ConfigurationError: if the site does not define the data set, or its network does not fit.
            OSError: if its disk is full.
        """
        values = payload.values
        site = fl_ctx.get_identity_name()
        require_same_rule(values.get(RULE_VALUE), site)
        known = self._find(values["problem"], site, fl_ctx)
        require_room(cache_folder(fl_ctx))
        device = choose_device(self._compute.device, self._compute.precision)
        self._held = self._held or HeldImages(device)
        return SiteContext(
            site=site,
            round_number=payload.round_number,
            problem=known.problem,
            seed=values["seed"],
            data=cast(SiteData, Unread()),
            device=device,
            precision=self._compute.precision,
            aborted=lambda: bool(abort_signal.triggered),
            cache=StateCache(state_folder(fl_ctx, values["run_name"], site) / "received"),
            own_spec=known.own_spec,
            ahead=ViewsAhead(self._compute.drawing_processes(in_kit(fl_ctx), device)),
            held=self._held,
            datasets=lambda name: self._dataset(name, known.problem, site, fl_ctx),
            gate=gate_of(fl_ctx),
        )

    def with_images(self, context: SiteContext, fl_ctx: FLContext, needs_labels: bool) -> SiteContext:
        """The same with the site's data; with ``needs_labels`` a site without a labelled training image is refused.

        Raises:
            DataError: if something must be fixed first, see :mod:`~grandrounds.data.fitness`.
        """
        context.gate.begin_reading()
        if self._found is None:
            raise ValueError("a context is made without images first")
        if self._found.data is None:
            self._found.data = load_checked_data(context.problem, context.site, fl_ctx, needs_labels, self._log)
        return replace(context, data=self._found.data)

    def _find(self, values: Mapping[str, Any], site: str, fl_ctx: FLContext) -> _Found:
        if self._found is None or self._found.data is None or self._found.values != values:
            problem = Problem.from_dict(values)
            require_buildable(problem.model_spec(pretrained=False), problem.image_size)
            chosen = locate(problem.dataset, site, data_folders(fl_ctx), cache_folder(fl_ctx)).model
            self._found = _Found(values, problem, self._spec(problem, site, chosen))
        return self._found

    def _dataset(self, name: str, problem: Problem, site: str, fl_ctx: FLContext) -> SiteData:
        if (name, problem) not in self._datasets:
            locate_public(name, problem.dataset, site, data_folders(fl_ctx), cache_folder(fl_ctx))
            data = load_dataset(name, problem, site, fl_ctx)
            if self._found is not None and self._found.data is not None:
                require_other_images(data, self._found.data, site)
            self._datasets[name, problem] = data
        return self._datasets[name, problem]
