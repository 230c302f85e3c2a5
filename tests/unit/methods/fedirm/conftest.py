"""A small site, as a hospital without labels and as one with; tests of this folder import what is beside them."""

import dataclasses
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from grandrounds.data.datasets.phantom import PHANTOM_CLASSES, draw_phantom
from grandrounds.data.images.cache import DecodedCache
from grandrounds.data.site import SiteData
from grandrounds.federation.site.context import SiteContext, StateCache
from grandrounds.protocol.problem import Problem
from grandrounds.seeding import numpy_generator

sys.path.insert(0, str(Path(__file__).parent))

from small_site import LABELS, SIZE


@pytest.fixture(scope="module")
def data():
    generator = numpy_generator("fedirm images")
    drawn = [draw_phantom(PHANTOM_CLASSES[label], "device-1", SIZE, generator) for label in LABELS]
    names = tuple(str(number) for number in range(len(LABELS)))
    return SiteData(
        cache=DecodedCache(np.stack(drawn)),
        labels=LABELS,
        labelled=np.zeros(len(LABELS), bool),
        split=np.full(len(LABELS), "train"),
        names=names,
        groups=names,
        classes=PHANTOM_CLASSES,
    )


@pytest.fixture
def context(data, tmp_path):
    problem = Problem("phantom", PHANTOM_CLASSES, SIZE, dropout=0.5)
    return SiteContext(
        "site-1", 4, problem, 7, data, torch.device("cpu"), "float32", lambda: False, StateCache(tmp_path)
    )


@pytest.fixture
def labelled(context):
    known = dataclasses.replace(context.data, labelled=np.ones(len(LABELS), bool))
    return dataclasses.replace(context, data=known)
