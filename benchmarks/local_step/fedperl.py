"""Local steps of FedPerl beside the textbook loop, and with the options of the published code beside the released loop."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from benchmarks.local_step.case import AS_RELEASED, HALF, Case, Work, context_of, in_precision, precision_of
from benchmarks.local_step.loops import as_released, fedperl_round
from grandrounds.data.datasets.phantom import PHANTOM_CLASSES
from grandrounds.federation.site.context import SiteContext
from grandrounds.federation.site.training import new_optimizer
from grandrounds.methods.fedperl.loss import PeerPseudoLabeler
from grandrounds.methods.fedperl.peer_selection import anonymised_peer
from grandrounds.methods.fixmatch.training import SemiSupervisedOptions, train_semi_supervised
from grandrounds.methods.supervised.training import TrainingOptions
from grandrounds.models.inference.forward import Forward
from grandrounds.models.norm import folded_copy
from grandrounds.models.registry import build_model
from grandrounds.protocol.problem import Problem
from grandrounds.protocol.task import PseudoLabels
from grandrounds.protocol.tasks import SINGLE

BATCH, GAMMA, RATE = 16, 0.01, 0.001
IMAGES, LABELLED = 96, 32
TRAINED_STEPS, PEER_STEPS = 4, 2


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
        self.batch = (BATCH, 3, image_size, image_size)
        problem = Problem("phantom", PHANTOM_CLASSES, image_size, 3, backbone)
        self._context, *others = (context_of(f"site-{n}", problem, IMAGES, LABELLED) for n in (1, 2, 3))
        self._start = build_model(problem.model_spec(pretrained=False), seed=1)
        _train(self._start, self._context, None, 0.6, TRAINED_STEPS)
        trained = [copy.deepcopy(self._start) for _ in others]
        for network, context in zip(trained, others, strict=True):
            _train(network, context, None, 0.6, PEER_STEPS)
        self._peer = copy.deepcopy(self._start)
        self._peer.load_state_dict(anonymised_peer([network.state_dict() for network in trained]))
        labeler = _Recording(SINGLE, [Forward(folded_copy(self._peer))], GAMMA)
        _train(copy.deepcopy(self._start), self._context, labeler, 1.0, PEER_STEPS)
        self._threshold = float(torch.cat(labeler.confidences).median())

    def round(self, loop: str, dtype: torch.dtype, steps: int) -> tuple[nn.Module, Work]:
        """A fresh network, and what trains it."""
        network, peer = in_precision(self._start, dtype), in_precision(self._peer, dtype)
        if loop.startswith("ours"):
            context = replace(self._context, precision=precision_of(loop))
            weight = 0.0 if loop == AS_RELEASED else GAMMA

            def work() -> None:  # as the package's executor, from the peer's model on
                _train(
                    network,
                    context,
                    PeerPseudoLabeler(SINGLE, [Forward(folded_copy(peer))], weight),
                    self._threshold,
                    steps,
                )

            return network, work
        other, released = in_precision(self._start, dtype), loop == "released"
        if released:
            network, other = as_released(network), as_released(other)
        options = {"batch_size": BATCH, "threshold": self._threshold, "gamma": GAMMA, "released": released}
        arguments = (network, torch.optim.Adam(network.parameters(), lr=RATE), self._context)
        return network, lambda: fedperl_round(*arguments, [peer.state_dict()], other, steps=steps, **options)


def _train(
    network: nn.Module, context: SiteContext, labeler: PeerPseudoLabeler | None, threshold: float, steps: int
) -> None:
    optimizer = new_optimizer(network.parameters(), "adam", RATE)
    training = TrainingOptions(batch_size=BATCH, steps=steps)
    train_semi_supervised(network, optimizer, context, training, SemiSupervisedOptions(threshold), labeler)


class _Recording(PeerPseudoLabeler):
    """Records the confidence of pseudo-labels."""

    confidences: tuple[Tensor, ...] = ()

    def labels(self, local: Tensor, predictions: Sequence[Tensor], threshold: float) -> PseudoLabels:
        """The pseudo-labels, unchanged."""
        found = super().labels(local, predictions, threshold)
        self.confidences = (*self.confidences, found.confidence)
        return found
