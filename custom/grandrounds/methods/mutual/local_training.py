"""What a site does with its own labels in one epoch: which batches, which views, and how far labels are trusted."""

from __future__ import annotations

from typing import NamedTuple

from torch import nn

from grandrounds.methods.mutual.bn_recalibration import recalibrate_batch_norm
from grandrounds.methods.mutual.options import LocalOptions
from grandrounds.methods.mutual.schedule import label_trust, local_batches
from grandrounds.methods.mutual.training import Private, train_local
from grandrounds.methods.mutual.work import Work
from grandrounds.seeding import derive_seed, numpy_generator


class Epoch(NamedTuple):
    """When and where a site trains.

    Attributes:
        seed: of the run.
        site: its name.
        number: collaborative epoch; 0 comes before the first exchange.
        epochs: collaborative epochs in all.
    """

    seed: int
    site: str
    number: int
    epochs: int


def learn_own_labels(
    network: nn.Module, private: Private, options: LocalOptions, passes: float, epoch: Epoch, work: Work
) -> float:
    """Train a model on the site's own labels.

    Args:
        network: trained in place.
        private: the site's images.
        options: how to learn.
        passes: over the images, above zero.
        epoch: chooses the batches and views.
        work: where to compute.

    Returns:
        The mean loss over the batches, in nats.
    """
    generator = numpy_generator(epoch.seed, "site", epoch.site, epoch.number, "private batches")
    batches = local_batches(private.rows, options.batch_size, passes, generator)
    key = derive_seed(epoch.seed, "site", epoch.site, epoch.number, "private views")
    trust = label_trust(epoch.number - 1, epoch.epochs) if epoch.number else 0.0
    loss = train_local(network, private, batches, options, key, work, trust)
    if options.recalibrate_bn:
        recalibrate_batch_norm(network, private.images, private.rows, work)
    return loss
