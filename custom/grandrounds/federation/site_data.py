"""A site's own images for a job, found, decoded once and examined before the first round."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from nvflare.apis.fl_context import FLContext

from grandrounds.data.doctor import examine, require_healthy
from grandrounds.data.phantom_site import DATASET_NAME, phantom_site
from grandrounds.data.site import (
    CONFIG_NAME,
    DatasetLocation,
    SiteData,
    load_site_data,
    locate_dataset,
    read_site_config,
)
from grandrounds.errors import GrandRoundsError
from grandrounds.federation.places import STATE_VARIABLE, data_folders, workspace_root
from grandrounds.federation.problem import Problem

CACHE_VARIABLE = "GRANDROUNDS_CACHE"


def cache_folder(fl_ctx: FLContext) -> Path:
    """Where a site keeps decoded images for all its runs; ``$GRANDROUNDS_CACHE`` overrides."""
    if CACHE_VARIABLE in os.environ:
        return Path(os.environ[CACHE_VARIABLE])
    state = os.environ.get(STATE_VARIABLE)
    return (Path(state) if state else workspace_root(fl_ctx) / "grandrounds") / "cache"


def load_checked_data(
    problem: Problem, site: str, fl_ctx: FLContext, needs_labels: bool, log: logging.Logger, trains: bool = True
) -> SiteData:
    """Load the problem's data set at this site.

    The data set ``phantom`` needs no files: a site without a ``grandrounds.json`` draws its own synthetic images.

    Raises:
        ConfigurationError: if the site does not define the data set.
        DataError: if the data doctor finds something that must be mended first.
    """
    cache = cache_folder(fl_ctx)
    location = _locate(problem.dataset, site, fl_ctx, cache)
    try:
        data = load_site_data(location, problem.classes, problem.image_size, problem.channels, cache)
    except GrandRoundsError as error:
        raise type(error)(f"{site}: {error}") from error
    findings = examine(data, site, needs_labels, trains)
    for finding in findings:
        if finding.level == "warning":
            log.warning("%s", finding.message)
    require_healthy(findings)
    return data


def _locate(dataset: str, site: str, fl_ctx: FLContext, cache: Path) -> DatasetLocation:
    folders = data_folders(fl_ctx)
    described = any((folder / name).is_file() for folder in folders for name in (CONFIG_NAME, f"{site}/{CONFIG_NAME}"))
    if dataset == DATASET_NAME and not described:
        return read_site_config(phantom_site(site, cache / DATASET_NAME))[DATASET_NAME]
    return locate_dataset(site, dataset, folders)
