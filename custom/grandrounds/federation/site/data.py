"""A site's own images for a job, found, decoded once and examined before the first round."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path

from nvflare.apis.fl_context import FLContext

from grandrounds.data.doctor import examine, require_healthy
from grandrounds.data.partition.files import PUBLIC_NAME
from grandrounds.data.partition.phantom_site import DATASET_NAME, phantom_site
from grandrounds.data.site import (
    CONFIG_NAME,
    DatasetLocation,
    SiteData,
    load_site_data,
    locate_dataset,
    read_site_config,
)
from grandrounds.errors import GrandRoundsError
from grandrounds.federation.paths import STATE_VARIABLE, data_folders, workspace_root
from grandrounds.protocol.problem import Problem

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
        DataError: if the data doctor finds something that must be fixed first.
    """
    cache = cache_folder(fl_ctx)
    location = locate(problem.dataset, site, fl_ctx)
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


def load_dataset(name: str, problem: Problem, site: str, fl_ctx: FLContext) -> SiteData:
    """Load a data set beside the problem's, in the problem's image format: every row of it, with or without labels.

    Rows of it mean the same at several sites, so none may be missing.

    Raises:
        ConfigurationError: if the site does not define the data set.
        DataError: if an image cannot be read, or the manifest is not as it must be.
    """
    cache = cache_folder(fl_ctx)
    location = replace(locate(name, site, fl_ctx), max_unreadable=0.0)
    try:
        return load_site_data(
            location, problem.classes, problem.image_size, problem.channels, cache, foreign_labels=True
        )
    except GrandRoundsError as error:
        raise type(error)(f"{site}: data set {name!r}: {error}") from error


def locate(dataset: str, site: str, fl_ctx: FLContext) -> DatasetLocation:
    """Find a data set at this site; one that describes nothing draws its own phantoms, and the same public ones as all.

    Raises:
        ConfigurationError: if the site does not define it.
    """
    folders = data_folders(fl_ctx)
    described = any((folder / name).is_file() for folder in folders for name in (CONFIG_NAME, f"{site}/{CONFIG_NAME}"))
    drawn_for = {DATASET_NAME: site, PUBLIC_NAME: PUBLIC_NAME}
    if dataset in drawn_for and not described:
        return read_site_config(phantom_site(drawn_for[dataset], cache_folder(fl_ctx) / DATASET_NAME))[DATASET_NAME]
    return locate_dataset(site, dataset, folders)
