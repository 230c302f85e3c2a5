"""Several frozen networks side by side with one head, as one module."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from grandrounds.models.depths import moments

MOST_FEATURES = 4096
"""A head in closed form keeps products of all pairs of features, here 134 MB for a site."""


class Branch(NamedTuple):
    """One network of several.

    Attributes:
        layers: modules that images pass one after the other; the first takes three channels.
        side: of the images that the first layer takes, in pixels.
        normalise: a function with a name of its own, from images ``(batch, 3, side, side)`` in [0, 1], red first, to what
            the first layer takes.
        taps: positions of layers after which maps are read, from 0; layers after the last of these are left out.
    """

    layers: Sequence[nn.Module]
    side: int
    normalise: Callable[[Tensor], Tensor]
    taps: Sequence[int]


class Encoder(nn.Module):
    """A branch that begins with an antialiased resize to its side.

    Args:
        branch: its layers are taken over, not copied.
        side: of the images that come, in pixels.
    """

    shrink: Tensor

    def __init__(self, branch: Branch, side: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*branch.layers[: max(branch.taps) + 1])
        self.normalise, self.taps = branch.normalise, frozenset(branch.taps)
        # Rows and columns are resized by one matrix, a product that every export knows.
        matrix = F.interpolate(torch.eye(side)[None, None], (branch.side, side), mode="bilinear", antialias=True)[0, 0]
        self.register_buffer("shrink", matrix, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Map images ``(batch, 3, h, w)`` to mean and standard deviation over the positions of each tap."""
        if len(self.shrink) != self.shrink.shape[1]:
            images = self.shrink @ images @ self.shrink.T
        maps, found = self.normalise(images), []
        for position, layer in enumerate(self.layers):
            maps = layer(maps)
            if position in self.taps:
                found += moments(maps)
        return torch.cat(found, dim=1)


def entry_name(name: str, branch: Branch) -> str:
    """What the entries of a branch are called: digests of frozen layers cover names and values, and nothing else.

    Example:
        >>> entry_name("near", Branch([], 112, torch.sigmoid, (5, 8)))
        'near_112_sigmoid_5_8'
    """
    return "_".join(map(str, (name, branch.side, branch.normalise.__name__, *branch.taps)))


class JoinedEncoders(nn.Module):
    """Frozen encoders of one image, whose features beside each other go into one linear layer, the only trained one.

    Args:
        branches: by names, with which :func:`entry_name` and entries of the ``state_dict`` begin.
        classes: of the logits.

    Raises:
        ValueError: if the branches have more than :data:`MOST_FEATURES` features.
    """

    def __init__(self, branches: Mapping[str, Branch], classes: int) -> None:
        super().__init__()
        self.side = max(branch.side for branch in branches.values())
        self.encoders = nn.ModuleDict(
            {entry_name(name, branch): Encoder(branch, self.side) for name, branch in branches.items()}
        )
        self.encoders.requires_grad_(False).eval()
        features = self._features(torch.zeros(1, 3, self.side, self.side)).shape[1]
        if features > MOST_FEATURES:
            raise ValueError(
                f"the branches have {features} features, at most {MOST_FEATURES} are possible: leave out taps"
            )
        self.head = nn.Linear(features, classes)

    def train(self, mode: bool = True) -> JoinedEncoders:
        """Set the mode of the head; the encoders stay in evaluation mode."""
        super().train(mode)
        self.encoders.eval()
        return self

    def forward(self, images: Tensor) -> Tensor:
        """Map images ``(batch, 3, side, side)`` in [0, 1] to logits ``(batch, classes)``.

        Raises:
            ValueError: for images of another side.
        """
        if images.shape[1:] != (3, self.side, self.side):
            raise ValueError(
                f"joined encoders take images of three channels and {self.side} pixels a side, got {tuple(images.shape[1:])}"
            )
        logits: Tensor = self.head(self._features(images))
        return logits

    def _features(self, images: Tensor) -> Tensor:
        return torch.cat([encoder(images) for encoder in self.encoders.values()], dim=1)
