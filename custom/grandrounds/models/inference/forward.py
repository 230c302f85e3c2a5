"""The one way of a network without gradients: frozen layers, teachers, peers, scores and predictions.

Frozen layers have other forms beside the network itself (``executor.inference``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor, nn

from grandrounds.data.batches import eval_batches
from grandrounds.errors import ConfigurationError
from grandrounds.protocol.tensors import at_least_single

Compute = Callable[[Tensor], Tensor]
EXACT, AUTO_FORM = "exact", "auto"


class Form:
    """How frozen layers are computed; this one, ``exact``, is the network itself, whatever its weights are.

    Attributes:
        equal_bits: whether its outputs are those of the network to the bit.
        networks: the backbones for which benchmarks/inference has it within its bounds; not looked at with equal bits.
    """

    equal_bits = True
    networks: Collection[str] = ()

    def require_possible(self, device: torch.device) -> None:
        """Refuse a machine that cannot compute in this form, by a :class:`ConfigurationError`."""

    def prepared(self, network: nn.Module, inputs: Tensor) -> Compute:
        """The network with its present weights, in evaluation mode, for any number of inputs of this shape."""
        return network


class EngineForm(Form):
    """By OpenVINO on the CPU, see :mod:`~.engine`; an image's outputs do not depend on those beside it.

    Args:
        name: of the form, for errors.
        precision: in which OpenVINO computes convolutions and products, ``f32`` or ``bf16``.
    """

    equal_bits = False
    networks = ("efficientnet_lite0",)

    def __init__(self, name: str, precision: str) -> None:
        self.name, self.precision = name, precision

    def require_possible(self, device: torch.device) -> None:
        """Refuse a GPU, a machine without the extra ``fast``, and a processor without the precision."""
        from grandrounds.models.inference.engine import capabilities

        if device.type != "cpu":
            raise ConfigurationError(f"executor.inference={self.name} computes on the CPU and the device is {device}")
        known = {"f32", *(name.lower() for name in capabilities())}
        if self.precision not in known:
            raise ConfigurationError(
                f"executor.inference={self.name}: this processor does not compute in {self.precision}; use fast or exact"
            )

    def prepared(self, network: nn.Module, inputs: Tensor) -> Compute:
        """See :class:`Form`."""
        from grandrounds.models.inference.engine import compiled

        return compiled(network, inputs, self.precision)


FORMS: Mapping[str, Form] = MappingProxyType(
    {EXACT: Form(), "fast": EngineForm("fast", "f32"), "bfloat16": EngineForm("bfloat16", "bf16")}
)


def form_named(name: str) -> Form:
    """The form of this name; for ``auto`` the last one of equal bits.

    Example:
        >>> form_named("auto") is form_named("exact")
        True
    """
    return FORMS[name] if name != AUTO_FORM else [form for form in FORMS.values() if form.equal_bits][-1]


BATCH = 256
PIECE = 64
"""Feature maps of this many images stay in a CPU's cache: EfficientNets are 1.4 to 1.8 times faster than with 256."""


class Forward:
    """A network in evaluation mode, without gradients; its mode is restored after each call.

    On a CPU a number of images that pieces of 64 divide is computed in such pieces: with another last piece the last bits
    would be others.

    Args:
        network: inputs ``(batch, ...)`` to outputs ``(batch, ...)``, each of one image alone.
        form: one of ``FORMS``, or ``auto``. Of a form other than ``exact`` the weights are those of the first call.
        precision: makes the context in which it is computed, such as autocast.
    """

    def __init__(
        self,
        network: nn.Module,
        form: str = EXACT,
        precision: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self.network = network
        self._form, self._precision = form_named(form), precision
        self._compute: Compute | None = None

    @torch.no_grad()
    def __call__(self, inputs: Tensor) -> Tensor:
        """The network's outputs, in single precision at least."""
        training = self.network.training
        if training:
            self.network.eval()
        try:
            with self._precision():
                compute = self._compute = self._compute or self._form.prepared(self.network, inputs)
                if inputs.device.type != "cpu" or len(inputs) <= PIECE or len(inputs) % PIECE:
                    return at_least_single(compute(inputs))
                return at_least_single(torch.cat([compute(piece) for piece in torch.split(inputs, PIECE)]))
        finally:
            if training:
                self.network.train()

    def logits(self, inputs: Callable[..., Tensor], rows: np.ndarray, test_view: str | None = None) -> Tensor:
        """The logits of images, or their means over the images and a fixed view of them.

        Args:
            inputs: what the network takes for some of the rows, on its device; with a second argument of that fixed view.
            rows: of the images, at least one.
            test_view: the fixed view, see ``problem.test_view``; None for the images alone.

        Returns:
            Shape ``(rows, classes)``, float32, on the network's device.
        """
        views = ((),) if test_view is None else ((), (test_view,))
        with self._precision():
            parts = [
                torch.stack([self(inputs(batch, *view)).float() for view in views]).mean(dim=0)
                for batch in eval_batches(rows, BATCH)
            ]
        return torch.cat(parts)
