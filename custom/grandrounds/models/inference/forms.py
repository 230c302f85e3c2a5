"""The forms in which a network is computed without gradients (``executor.inference``)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType

import torch
from torch import Tensor, nn

from grandrounds.errors import ConfigurationError
from grandrounds.models.norm import folded_copy

Compute = Callable[[Tensor], Tensor]
EXACT, AUTO_FORM = "exact", "auto"
FOLDED_NETWORKS = ("compact", "densenet121", "efficientnet_b0", "efficientnet_lite0", "resnet18")
"""The backbones for which folded networks were found within the bounds (benchmarks/inference), also by ONNX Runtime."""


class Form:
    """How a network is computed without gradients; this one, ``exact``, is the network itself, whatever its weights are.

    Attributes:
        equal_bits: whether its outputs are those of the network to the bit.
        networks: the backbones for which it was measured within .01 of the network's probabilities, with at most one changed
            decision in a thousand (benchmarks/inference); not looked at with equal bits.
    """

    equal_bits = True
    networks: Collection[str] = ()

    def require_possible(self, device: torch.device) -> None:
        """Refuse a machine that cannot compute in this form, by a :class:`ConfigurationError`."""

    def prepared(self, network: nn.Module, inputs: Tensor) -> Compute:
        """The network with its present weights, in evaluation mode, for any number of inputs of this shape."""
        return network


class FusedForm(Form):
    """A copy whose batch norms are folded into the convolutions before them, see :func:`~..norm.folded_copy`."""

    equal_bits = False
    networks = FOLDED_NETWORKS

    def prepared(self, network: nn.Module, inputs: Tensor) -> Compute:
        """See :class:`Form`."""
        return folded_copy(network)


class BFloat16Form(Form):
    """The folded copy under autocast: convolutions and products in bfloat16."""

    equal_bits = False
    networks = ("densenet121",)

    def prepared(self, network: nn.Module, inputs: Tensor) -> Compute:
        """See :class:`Form`."""
        compute: Compute = torch.autocast(inputs.device.type, torch.bfloat16)(folded_copy(network))
        return compute


class OnnxForm(Form):
    """The folded copy by ONNX Runtime, on the CPU."""

    equal_bits = False
    networks = FOLDED_NETWORKS

    def require_possible(self, device: torch.device) -> None:
        """Refuse a GPU, and a machine without the extra ``onnx``."""
        if device.type != "cpu":
            raise ConfigurationError(f"executor.inference=onnx computes on the CPU and the device is {device}")
        from grandrounds.models.inference.tracing import require_onnx  # with torch's exporters

        require_onnx()

    def prepared(self, network: nn.Module, inputs: Tensor) -> Compute:
        """See :class:`Form`."""
        from grandrounds.models.inference.tracing import traced

        return traced("onnx", folded_copy(network), inputs[:1].repeat(2, 1, 1, 1))[1]


FORMS: Mapping[str, Form] = MappingProxyType(
    {EXACT: Form(), "fused": FusedForm(), "onnx": OnnxForm(), "bfloat16": BFloat16Form()}
)


def form_named(name: str) -> Form:
    """The form of this name; for ``auto`` the last one of equal bits.

    Example:
        >>> form_named("auto") is form_named("exact")
        True
    """
    return FORMS[name] if name != AUTO_FORM else [form for form in FORMS.values() if form.equal_bits][-1]
