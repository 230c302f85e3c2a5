"""A site's task on images in memory, for tests of what trains there."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

from grandrounds.data.images.cache import DecodedCache
from grandrounds.data.site import SiteData
from grandrounds.federation.site.context import SiteContext, StateCache


def site_context(images, labels=None, rows=None, site="site-1", seed=1, aborted=lambda: False):
    """A task in round 1; ``rows`` are the training images, all by default."""
    count = len(images)
    labels = np.zeros(count, np.int64) if labels is None else labels
    names = tuple(map(str, range(count)))
    labelled = np.isin(np.arange(count), np.arange(count) if rows is None else rows)
    classes = tuple(f"class-{label}" for label in range(int(labels.max(initial=0)) + 1))
    data = SiteData(DecodedCache(images), labels, labelled, np.full(count, "train"), names, names, classes)
    cache = StateCache(Path())
    return SiteContext(site, 1, SimpleNamespace(), seed, data, torch.device("cpu"), "float32", aborted, cache)
