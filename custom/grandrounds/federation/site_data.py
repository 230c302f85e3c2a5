"""A site's own images for a job, found, decoded once and examined before the first round."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from nvflare.apis.fl_context import FLContext

from grandrounds.data.doctor import examine_location, require_healthy
from grandrounds.data.phantom_site import phantom_site
from grandrounds.data.site import DatasetLocation, SiteData, load_site_data, locate_dataset, read_site_config
from grandrounds.federation.places import STATE_VARIABLE, data_folders, workspace_root
from grandrounds.federation.problem import Problem

PHANTOM = "phantom"
CACHE_VARIABLE = "GRANDROUNDS_CACHE"


def cache_folder(fl_ctx: FLContext) -> Path:
    """Where a site keeps decoded images for all its runs; ``$GRANDROUNDS_CACHE`` overrides."""
    if CACHE_VARIABLE in os.environ:
        return Path(os.environ[CACHE_VARIABLE])
    state = os.environ.get(STATE_VARIABLE)
    return (Path(state) if state else workspace_root(fl_ctx) / "grandrounds") / "cache"


def load_checked_data(
    problem: Problem, site: str, fl_ctx: FLContext, needs_labels: bool, log: logging.Logger
) -> SiteData:
    """Load the problem's data set at this site.

    The data set ``phantom`` needs no files: a site that does not define it draws its own synthetic images.

    Raises:
        ConfigurationError: if the site does not define the data set.
        DataError: if the data doctor finds something that must be mended first.
    """
    cache = cache_folder(fl_ctx)
    location = _locate(problem.dataset, site, fl_ctx, cache)
    findings = examine_location(
        location, problem.classes, problem.image_size, problem.channels, cache, site, needs_labels=needs_labels
    )
    for finding in findings:
        if finding.level == "warning":
            log.warning("%s", finding.message)
    require_healthy(findings)
    return load_site_data(location, problem.classes, problem.image_size, problem.channels, cache)


def _locate(dataset: str, site: str, fl_ctx: FLContext, cache: Path) -> DatasetLocation:
    folders = data_folders(fl_ctx)
    if dataset == PHANTOM and not any(
        (f / n).is_file() for f in folders for n in ("grandrounds.json", f"{site}/grandrounds.json")
    ):
        return read_site_config(phantom_site(site, cache / "phantom"))[PHANTOM]
    return locate_dataset(site, dataset, folders)
