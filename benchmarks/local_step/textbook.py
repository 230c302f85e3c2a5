"""One site's round of FedPerl, written down as the paper says it, with no thought for speed.

It is what the package's training is measured against, in time and in its result. What it wastes, and the package saves:
the peers' states are loaded into one network anew in every step, for every peer; that network predicts with batch norm
and an autograd graph that nobody uses; strong views are drawn of all unlabelled images though only those with an accepted
pseudo-label are learnt; the optimizer goes over the parameters in Python.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from grandrounds.data.batches import index_batches
from grandrounds.data.images.views import draw_views, to_tensor
from grandrounds.federation.site.context import SiteContext


def textbook_round(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    context: SiteContext,
    peers: Sequence[Mapping[str, Tensor]],
    peer_network: nn.Module,
    *,
    steps: int,
    batch_size: int = 16,
    threshold: float = 0.6,
    beta: float = 0.5,
    gamma: float = 0.01,
) -> None:
    r"""Train in place: :math:`L = \mathrm{wCE} + \beta L_u + \gamma L_{con}` (Bdair et al., MELBA 2022, Eq. 3, 5, 8 and 9).

    Batches and views are those that the package draws for the same context.

    Args:
        network: in training mode.
        optimizer: of its parameters.
        context: of the task.
        peers: states of the peers, at least one.
        peer_network: takes the peers' states in turn.
        steps: how many.
        batch_size: labelled images, and unlabelled images, of a step.
        threshold: least confidence of a pseudo-label.
        beta: factor of the unsupervised loss, the mean over accepted images.
        gamma: factor of the consistency loss, the mean squared difference of probabilities.
    """
    data = context.data
    labelled_batches = index_batches(data.rows("labelled"), batch_size, steps, context.generator("labelled batches"))
    unlabelled_batches = index_batches(
        data.rows("unlabelled"), batch_size, steps, context.generator("unlabelled batches")
    )
    class_weights = median_frequency_weights(data.class_counts("labelled"))
    labelled_key, unlabelled_key = context.key("labelled views"), context.key("unlabelled views")
    with context.torch_seeded("training"):
        for step, (labelled, unlabelled) in enumerate(zip(labelled_batches, unlabelled_batches, strict=True)):
            images = to_tensor(draw_views(data.images, labelled, "weak", labelled_key, step))
            weak = to_tensor(draw_views(data.images, unlabelled, "weak", unlabelled_key, step))
            strong = to_tensor(draw_views(data.images, unlabelled, "strong", unlabelled_key, step))
            logits = network(images)
            labels = torch.from_numpy(data.labels[labelled])
            loss = F.cross_entropy(logits, labels, weight=class_weights.to(logits))
            own = F.softmax(network(weak), dim=1)
            theirs = []
            for state in peers:
                peer_network.load_state_dict(state)
                peer_network.eval()
                theirs.append(F.softmax(peer_network(weak), dim=1).detach())
            confidence, pseudo_labels = ((own.detach() + sum(theirs)) / (len(peers) + 1)).max(dim=1)
            accepted = confidence >= threshold
            if accepted.any():
                loss = loss + beta * F.cross_entropy(network(strong[accepted]), pseudo_labels[accepted])
            loss = loss + gamma * sum(F.mse_loss(own, prediction) for prediction in theirs) / len(peers)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def median_frequency_weights(counts: np.ndarray) -> Tensor:
    """Median count over count; 100 for a class without images."""
    median = float(np.median(counts[counts > 0]))
    return torch.tensor([median / count if count else 100.0 for count in counts.tolist()])
