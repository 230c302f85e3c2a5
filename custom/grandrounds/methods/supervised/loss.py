"""Frequent and rare classes in the loss of labelled images: weights of classes, and logits adjusted by class shares.

The weights are those of FedPerl's released code (Bdair et al., "Semi-Supervised Federated Peer Learning for Skin Lesion
Classification", MELBA 2022), which its text does not mention.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from grandrounds.errors import ConfigurationError
from grandrounds.plugins import Registry
from grandrounds.registered import require_parameters

Loss = Callable[[Tensor, Tensor, "Tensor | None"], Tensor]
"""From logits ``(batch, classes)``, labels and weights of classes, or None, to a scalar that is minimised."""
OWN_LOSSES: Registry[Loss] = Registry("loss")
ABSENT_CLASS_WEIGHT = 100.0


def median_class_weights(counts: Tensor) -> Tensor:
    r"""Weight each class by median frequency.

    .. math:: w_c = \mathrm{median}\{n_j : n_j > 0\} / n_c, \qquad w_c = 100 \text{ where } n_c = 0

    Args:
        counts: labelled images per class, shape ``(classes,)``, not negative and not all zero.

    Returns:
        Weights, shape ``(classes,)``, float32. That of an absent class matters for validation images only.

    Example:
        >>> median_class_weights(torch.tensor([40, 10, 20, 0]))
        tensor([  0.5000,   2.0000,   1.0000, 100.0000])
        >>> median_class_weights(torch.tensor([7, 7]))  # balanced classes
        tensor([1., 1.])
    """
    numbers = counts.double()
    present = numbers > 0
    weights = torch.full_like(numbers, ABSENT_CLASS_WEIGHT)
    weights[present] = numbers[present].quantile(0.5) / numbers[present]
    return weights.float()


def adjusted_logits(logits: Tensor, counts: Tensor, strength: float) -> Tensor:
    r"""Add the log shares of the classes, so that the loss does not draw a model to the classes that are frequent here.

    .. math:: z_{ic} + \tau \ln \frac{n_c + 1}{\sum_k (n_k + 1)}

    Menon et al., "Long-tail learning via logit adjustment", ICLR 2021, Eq. 10; strength 1 is balanced softmax (Ren et al.,
    "Balanced meta-softmax for long-tailed visual recognition", NeurIPS 2020, Eq. 4). By site, with the shares of its own
    labels: Zhang et al., "Federated learning with label distribution skew via logits calibration", ICML 2022.

    Args:
        logits: shape ``(batch, classes)``.
        counts: :math:`n`, labelled images of each class, shape ``(classes,)``; a class without any counts as one image.
        strength: :math:`\tau`, at least zero.

    Example:
        >>> adjusted_logits(torch.zeros(1, 2), torch.tensor([2, 0]), 1.0).exp()  # 3 and 1 of 4
        tensor([[0.7500, 0.2500]])
    """
    smoothed = counts.to(logits) + 1
    return logits + strength * (smoothed / smoothed.sum()).log()


def _fault(loss: Loss, labels: Tensor) -> str:
    """What a loss gives for four images, if it is no finite scalar with a gradient; else empty."""
    try:
        value: Any = loss(torch.zeros(4, 3, requires_grad=True), labels, None)
    except Exception as error:  # of another's function
        return f"{type(error).__name__}: {error}"
    if not isinstance(value, Tensor):
        return type(value).__name__
    good = value.shape == () and value.requires_grad and bool(value.isfinite())
    return "" if good else f"{tuple(value.shape)}"


def register_loss(name: str) -> Callable[[Loss], Loss]:
    """Register a loss of labelled images, for ``executor.loss``; use it as a decorator.

    Args:
        name: lower-case letters, digits and ``_``.

    Returns:
        A decorator of a function of the logits, shape ``(batch, classes)``, the labels as the task has them (single:
        class indices of shape ``(batch,)``), and the weights of classes, shape ``(classes,)``, or None for equal ones. It
        returns a scalar, the mean over the batch.

    Raises:
        ConfigurationError: if the name has other characters or is taken, or the function takes other arguments, or gives no
            finite scalar with a gradient for four images of three classes, nor of three findings.

    Example::

        @gr.register_loss("focal")
        def focal(logits, labels, weights):
            log_p = logits.log_softmax(1).gather(1, labels[:, None])[:, 0]
            return -((1 - log_p.exp()) ** 2 * log_p).mean()
    """
    OWN_LOSSES.require_name(name)

    def register(loss: Loss) -> Loss:
        require_parameters(f"loss {name}", loss, "logits", "labels", "weights")
        classes = torch.tensor([0, 1, 2, 0])
        faults = [_fault(loss, labels) for labels in (classes, torch.eye(3)[classes])]
        if all(faults):
            raise ConfigurationError(
                f"loss {name} gives {faults[0]}; return a finite scalar tensor that has a gradient"
            )
        OWN_LOSSES.add(name, loss, loss)
        return loss

    return register
