"""A small site with few images of two classes, and one round of training at it, for the tests beside it."""

import dataclasses

import numpy as np
import scipy.special
import torch

from grandrounds.data.datasets.phantom import PHANTOM_CLASSES
from grandrounds.methods.fedirm.options import ClientOptions, LabelledOptions, RelationOptions, UnlabelledOptions
from grandrounds.methods.fedirm.relation import Relation
from grandrounds.methods.fedirm.training import SiteTeacher, train_labelled, train_unlabelled
from grandrounds.models.registry import build_model
from grandrounds.protocol.problem import Problem
from grandrounds.protocol.tasks import SINGLE

SIZE, BATCH, DRAWS = 32, 8, 5
COUNTS = (12, 9, 2, 1)
LABELS = np.repeat(np.arange(4), COUNTS)
LOCAL = ClientOptions(batch_size=BATCH)
STEPS = LOCAL.pass_steps(len(LABELS))
# Untrained predictions lie close together; this threshold divides them.
DIVIDING = 1.36
TARGET = Relation(torch.eye(4) * 0.6 + 0.1, torch.tensor([2, 2, 2, 0]))


def network_of(seed=0, dropout=0.5):
    return build_model(Problem("phantom", PHANTOM_CLASSES, SIZE, dropout=dropout).model_spec(pretrained=False), seed)


def sgd(network, rate=0.05):
    return torch.optim.SGD(network.parameters(), lr=rate)


def fit_unlabelled(network, context, *, target=TARGET, local=LOCAL, relations=None, kept=None, **options):
    chosen = UnlabelledOptions(**{"draws": DRAWS, "ramp_length": 0.0, "uncertainty_threshold": DIVIDING, **options})
    teacher = SiteTeacher(SINGLE, network, chosen, kept or {})
    metrics, own = train_unlabelled(
        network, sgd(network), context, local, chosen, relations or RelationOptions(), target, teacher
    )
    return metrics, own, teacher


def fit_labelled(network, context, relations=None, local=LOCAL, rate=0.05, **options):
    chosen = LabelledOptions(**{"two_views": False, **options})
    return train_labelled(network, sgd(network, rate), context, local, chosen, relations or RelationOptions())


def flat(network):
    return torch.cat([value.flatten() for value in network.state_dict().values() if value.is_floating_point()])


def softened(logits, labels, temperature=2.0):
    """By NumPy and SciPy: mean logits of each class, softened."""
    means = [logits[labels == c].mean(axis=0) if (labels == c).any() else np.zeros(4) for c in range(4)]
    return scipy.special.softmax(np.stack(means) / temperature, axis=1)


def in_groups(context, groups):
    """The same images, of other patients."""
    return dataclasses.replace(context, data=dataclasses.replace(context.data, groups=tuple(groups)))
