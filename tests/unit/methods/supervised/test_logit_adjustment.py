"""Training with adjusted logits is that of ``z + tau ln(share)``, by the labels of the site or of all sites."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from grandrounds.data.images.cache import DecodedCache
from grandrounds.data.site import SiteData
from grandrounds.errors import ConfigurationError
from grandrounds.federation.site.context import SiteContext, StateCache
from grandrounds.methods.supervised.training import LabelledBatches, TrainingOptions, require_single_images
from grandrounds.protocol.problem import Problem
from grandrounds.protocol.tasks import SINGLE, task_named

LABELS = [0, 0, 0, 1, 1, 2]
PLAIN = TrainingOptions(steps=1, batch_size=6, class_weights="none", weak_augmentation=False)


@pytest.mark.parametrize(("counts", "shares"), [(None, [4 / 9, 3 / 9, 2 / 9]), ((7, 0, 11), [8 / 21, 1 / 21, 12 / 21])])
def test_the_loss_of_a_batch(tmp_path, counts, shares):
    """The site has 3, 2 and 1 labelled images; each class counts as one image more."""
    images = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3), dtype=np.uint8)
    names, problem = tuple("123456"), Problem("noise", ("a", "b", "c"), 32)
    data = SiteData(
        DecodedCache(images), np.array(LABELS), np.full(6, True), np.full(6, "train"), names, names, problem.classes
    )
    cache = StateCache(tmp_path)
    context = SiteContext("site-1", 1, problem, 7, data, torch.device("cpu"), "float32", lambda: False, cache)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 3))
    found = LabelledBatches(context, replace(PLAIN, class_counts=counts, logit_adjustment=0.5)).loss(model, 0)
    views = context.views(np.arange(6), "none", 0, 0)
    expected = F.cross_entropy(model(views) + 0.5 * torch.tensor(shares).log(), torch.tensor(LABELS))
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    plain = LabelledBatches(context, PLAIN).loss(model, 0)
    assert found.item() != pytest.approx(plain.item(), rel=1e-3)


def test_classes_must_exclude_each_other_and_images_must_not_depend_on_each_other():
    options = replace(PLAIN, logit_adjustment=1.0)
    assert options.adjusted_by(np.array([0, 1, 1]), 3, SINGLE).tolist() == [1, 2, 0]
    with pytest.raises(ConfigurationError, match=r"executor\.logit_adjustment; set it to 0"):
        options.adjusted_by(np.zeros((1, 2)), 2, task_named("multi"))
    with pytest.raises(ConfigurationError, match="needs logit_adjustment=0, got 1"):
        require_single_images(options)
