"""Where a site's data sets are, by the names that jobs call them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from grandrounds.data.manifest import read_manifest
from grandrounds.data.site import (
    CONFIG_NAME,
    FINDINGS_NAME,
    LABELLED_NAME,
    PHANTOM_NAME,
    PUBLIC_NAME,
    DatasetLocation,
    locate_dataset,
    read_site_config,
)
from grandrounds.errors import ConfigurationError


def locate(dataset: str, site: str, folders: Sequence[Path], cache: Path) -> DatasetLocation:
    """Find a data set at this site; one that describes nothing draws its own phantoms, and the same public ones as all.

    Args:
        dataset: as jobs call it.
        site: the site's name.
        folders: in which the site's ``grandrounds.json`` is looked for, in this order.
        cache: the folder in which phantoms are drawn.

    Raises:
        ConfigurationError: if the site does not define it.
    """
    described = any((folder / name).is_file() for folder in folders for name in (CONFIG_NAME, f"{site}/{CONFIG_NAME}"))
    drawn_for = {PHANTOM_NAME: site, FINDINGS_NAME: site, LABELLED_NAME: site, PUBLIC_NAME: PUBLIC_NAME}
    if dataset in drawn_for and not described:
        from grandrounds.data.partition.phantom_site import phantom_site  # no site with images of its own needs it

        kind = PHANTOM_NAME if dataset == PUBLIC_NAME else dataset
        # As many patients of each class as policies ask for behind a sum.
        size: dict[str, Any] = {"images": 480, "labelled": 1.0} if dataset == LABELLED_NAME else {}
        drawn = read_site_config(phantom_site(drawn_for[dataset], cache / kind, dataset=kind, **size))[kind]
        return replace(drawn, public=dataset == PUBLIC_NAME)
    return locate_dataset(site, dataset, folders)


def locate_public(name: str, private: str, site: str, folders: Sequence[Path], cache: Path) -> DatasetLocation:
    """Find a data set about whose images predictions may leave the site.

    Args:
        name: as the server calls it.
        private: the data set that the site trains on.
        site: the site's name.
        folders: as of :func:`locate`.
        cache: as of :func:`locate`.

    Raises:
        ConfigurationError: if the site's own file does not call it public, or it has an image file of the private one.
    """
    location, own = (locate(dataset, site, folders, cache) for dataset in (name, private))
    if name == private or own.public or not location.public:
        raise ConfigurationError(
            f'{site}: data set {name!r} is not public here; if predictions about its images may leave, set "public": true '
            f"in its entry of {CONFIG_NAME}"
        )
    shared = _files(location) & _files(own)
    if shared:
        raise ConfigurationError(f"{site}: {min(shared)} is in public data set {name!r} and in private {private!r}")
    return location


def _files(location: DatasetLocation) -> set[str]:
    root = os.path.realpath(location.root)
    return {os.path.realpath(os.path.join(root, record.image)) for record in read_manifest(location.manifest)}
