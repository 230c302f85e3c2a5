"""MDH-FL's alignment as one would write it from the paper, for comparison: plain, and without the project's maths.

Every other site's rows are a loss of their own (Eq. 3), and rows are predicted in batches of the alignment's size.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F


def textbook_loss(network: nn.Module, images: Tensor, others: Sequence[Tensor]) -> Tensor:
    """Mean over the others of the divergence of the own predictions from theirs."""
    own = F.softmax(network(images), dim=1)
    losses = [F.kl_div(own.log(), theirs, reduction="batchmean") for theirs in others]
    return torch.stack(losses).mean()


def textbook_pass(
    network: nn.Module, images: NDArray[np.uint8], others: Sequence[Tensor], batches: Sequence[NDArray[np.int64]]
) -> float:
    """One pass over the public images with one Adam; returns the mean loss."""
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    total = 0.0
    for batch in batches:
        loss = textbook_loss(network, as_tensor(images[batch], network), [theirs[batch] for theirs in others])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(batches)


def textbook_rows(network: nn.Module, images: NDArray[np.uint8], batch_size: int) -> Tensor:
    """Predictions in evaluation mode, batch after batch."""
    network.eval()
    parts = []
    with torch.no_grad():
        for start in range(0, len(images), batch_size):
            parts.append(F.softmax(network(as_tensor(images[start : start + batch_size], network)), dim=1))
    return torch.cat(parts)


def as_tensor(batch: NDArray[np.uint8], network: nn.Module) -> Tensor:
    """Images in [0, 1], channels first; as they come from views, in single precision, whatever the network's."""
    dtype = next(network.parameters()).dtype
    return torch.from_numpy(batch).permute(0, 3, 1, 2).to(torch.float32).div(255).to(dtype)
