"""Frozen copies of a model for prediction only, with batch norm folded into the convolutions.

Peers and teachers predict with fixed weights and fixed statistics. Then a batch norm is a scale and a shift per
channel, which the convolution before it can absorb (Jacob et al., "Quantization and Training of Neural Networks for
Efficient Integer-Arithmetic-Only Inference", CVPR 2018, section 3.2).
"""

from __future__ import annotations

import copy
from itertools import pairwise

from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval


def folded_copy(model: nn.Module) -> nn.Module:
    r"""Copy a model for prediction: evaluation mode, no gradients, batch norms folded where that is safe.

    .. math:: W' = s W, \qquad b' = \beta + s (b - \mu), \qquad s = \gamma / \sqrt{\sigma^2 + \epsilon}

    Only a batch norm that directly follows a convolution in an ``nn.Sequential`` is folded: elsewhere the order of the
    modules does not say the order of their use. Others are copied as they are.

    Args:
        model: any model in which no module is used twice; it is not changed.

    Returns:
        A model with the same outputs up to rounding, but with other ``state_dict`` names. It must stay in evaluation
        mode.
    """
    frozen = copy.deepcopy(model).eval().requires_grad_(False)
    for module in list(frozen.modules()):
        # A subclass with a forward of its own may use its children in another order.
        if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
            _fold(module)
    return frozen


def _fold(sequence: nn.Sequential) -> None:
    for index, (first, second) in enumerate(pairwise(list(sequence))):
        if isinstance(first, nn.Conv2d) and isinstance(second, nn.BatchNorm2d) and second.track_running_stats:
            sequence[index] = fuse_conv_bn_eval(first, second)
            sequence[index + 1] = nn.Identity().eval()
