"""Local steps of FedPerl: as the paper says it beside the textbook, and as its code trains beside the released loop."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.local_step import textbook
from benchmarks.local_step.case import HALF, Case, Work, in_precision, phantom_context, precision_of
from benchmarks.local_step.released import as_released
from grandrounds.data.datasets.phantom import PHANTOM_CLASSES
from grandrounds.federation.site.context import SiteContext
from grandrounds.federation.site.training import new_optimizer
from grandrounds.methods.fedperl.loss import PeerPseudoLabeler
from grandrounds.methods.fedperl.peer_selection import anonymised_peer
from grandrounds.methods.fixmatch.loss import PseudoLabels
from grandrounds.methods.fixmatch.training import SemiSupervisedOptions, train_semi_supervised
from grandrounds.methods.supervised.training import TrainingOptions
from grandrounds.models.norm import folded_copy
from grandrounds.models.registry import build_model
from grandrounds.protocol.problem import Problem

BATCH, GAMMA, RATE = 16, 0.01, 0.001
IMAGES, LABELLED = 96, 32
TRAINED_STEPS, PEER_STEPS = 4, 2
AS_RELEASED = "ours, as released"


class FedPerlCase(Case):
    """Steps from a model that has been trained a little, with the anonymised peer of two sites that went on from it.

    The threshold is the median confidence of the pseudo-labels, so that about half of the images are accepted.
    """

    method = "FedPerl"
    comparisons = (("ours", "textbook"), (AS_RELEASED, "released"))

    def __init__(self, backbone: str, image_size: int, *, steps: int) -> None:
        self.title = f"{backbone}, {image_size} px, batches of {BATCH}"
        self.loops = ("ours", "textbook", AS_RELEASED, "released", *((HALF,) if backbone == "compact" else ()))
        self.steps = steps
        self.checked_steps = (3 if backbone == "compact" else 1,)
        self._problem = Problem("phantom", PHANTOM_CLASSES, image_size, 3, backbone)
        self._context = phantom_context("site-1", self._problem, IMAGES, LABELLED)
        self._start = build_model(self._problem.model_spec(pretrained=False), seed=1)
        self._train(self._start, self._context, None, 0.6, TRAINED_STEPS)
        self._peer = self._anonymised_peer()
        labeler = _Recording([folded_copy(self._peer)], GAMMA)
        self._train(copy.deepcopy(self._start), self._context, labeler, 1.0, PEER_STEPS)
        self._threshold = float(torch.cat(labeler.confidences).median())

    def forward(self) -> Work:
        """One forward pass of a batch."""
        size = self._problem.image_size
        return partial(self._start, torch.zeros(BATCH, 3, size, size))

    def round(self, loop: str, dtype: torch.dtype, steps: int) -> tuple[nn.Module, Work]:
        """A fresh network, and what trains it."""
        network, peer = in_precision(self._start, dtype), in_precision(self._peer, dtype)
        if loop.startswith("ours"):
            context = replace(self._context, precision=precision_of(loop))
            weight = 0.0 if loop == AS_RELEASED else GAMMA
            return network, lambda: self._learn(network, context, peer, weight, steps)
        options = {"steps": steps, "batch_size": BATCH, "threshold": self._threshold, "gamma": GAMMA}
        state = peer.state_dict()
        other = in_precision(self._start, dtype)
        if loop == "released":
            network, other = as_released(network), as_released(other)
        optimizer, released = torch.optim.Adam(network.parameters(), lr=RATE), loop == "released"
        arguments = (network, optimizer, self._context, [state], other)
        return network, lambda: textbook.fedperl_round(*arguments, released=released, **options)

    def _learn(self, network: nn.Module, context: SiteContext, peer: nn.Module, weight: float, steps: int) -> None:
        """A round as the package's executor makes it, from the peer's model on."""
        self._train(network, context, PeerPseudoLabeler([folded_copy(peer)], weight), self._threshold, steps)

    @staticmethod
    def _train(
        network: nn.Module, context: SiteContext, labeler: PeerPseudoLabeler | None, threshold: float, steps: int
    ) -> None:
        optimizer = new_optimizer(network.parameters(), "adam", RATE)
        training = TrainingOptions(batch_size=BATCH, steps=steps)
        train_semi_supervised(network, optimizer, context, training, SemiSupervisedOptions(threshold), labeler)

    def _anonymised_peer(self) -> nn.Module:
        states = []
        for site in ("site-2", "site-3"):
            trained = copy.deepcopy(self._start)
            self._train(trained, phantom_context(site, self._problem, IMAGES, LABELLED), None, 0.6, PEER_STEPS)
            states.append(trained.state_dict())
        peer = copy.deepcopy(self._start)
        peer.load_state_dict(anonymised_peer(states))
        return peer


class _Recording(PeerPseudoLabeler):
    """Records the confidence of pseudo-labels."""

    confidences: tuple[Tensor, ...] = ()

    def labels(self, local: Tensor, predictions: Sequence[Tensor], threshold: float) -> PseudoLabels:
        """The pseudo-labels, unchanged."""
        found = super().labels(local, predictions, threshold)
        self.confidences = (*self.confidences, found.confidence)
        return found
