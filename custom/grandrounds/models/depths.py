r"""A head that is linear on features of several depths, in place of the backbone's own (``problem.head=depths``).

.. math:: \phi(x) = [\text{mean}_{hw} A_1, \text{std}_{hw} A_1, \dots, \text{std}_{hw} A_K, f], \qquad
          z = T \, \big( W (s \odot (\phi(x) - \mu)) + b \big)

:math:`A_k` are the maps after layers that the registry declares for a backbone, its *taps*; :math:`f` is the pooled last
layer, which is all that the backbone's own head reads. The head's state is :math:`W`, :math:`b`, the scaling
:math:`\mu, s`, the temperature :math:`T`, and what makes logits of risks of those of decisions, :math:`z_r = f \odot z + g`;
but for W and b they are not trained.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from grandrounds.models.inference.forward import Forward
from grandrounds.models.norm_layers import replace_module
from grandrounds.models.split import chain_names, embedding_width, head_name, head_of, split_network, without
from grandrounds.protocol.task import Task

DECIDED = torch.tensor([1.0, 0.0])
"""Factor and addend of risks that are decisions."""


class DepthHead(nn.Module):
    """A linear layer on scaled features, times a temperature.

    Buffers are in the ``state_dict`` as integers of the same bits: like the counters of batch norm they are in no update,
    mean, clipping or noise, and no message rounds them. In a state without ``risk`` risks are decisions.

    Args:
        features: of an image, d.
        classes: of the logits.
        dropout: probability of dropping a scaled feature in training, in [0, 1).
    """

    shift: Tensor
    scale: Tensor
    temperature: Tensor
    risk: Tensor

    def __init__(self, features: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.features = features
        self.register_buffer("shift", torch.zeros(features))
        self.register_buffer("scale", torch.ones(features))
        self.register_buffer("temperature", torch.ones(()))
        self.register_buffer("risk", torch.stack([torch.ones(classes), torch.zeros(classes)]))
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(features, classes)

    def forward(self, features: Tensor) -> Tensor:
        """Map features ``(batch, features)`` to logits ``(batch, classes)``."""
        scores: Tensor = self.linear(self.dropout((features - self.shift) * self.scale))
        return self.temperature * scores

    def risks(self, logits: Tensor) -> Tensor:
        """The logits of probabilities at the classes' shares of training images, from those of decisions."""
        return self.risk[0] * logits + self.risk[1]

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name, value in self.named_buffers(recurse=False):
            destination[prefix + name] = value.detach().view(torch.int32)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        own = {prefix + name for name, _ in self.named_buffers(recurse=False)}
        floats = {
            name: value.view(torch.float32) if name in own and value.dtype == torch.int32 else value
            for name, value in state_dict.items()
        }
        floats.setdefault(f"{prefix}risk", DECIDED[:, None].expand_as(self.risk))
        super()._load_from_state_dict(floats, prefix, *others)

    @torch.no_grad()
    def set_linear(
        self,
        weights: Tensor,
        bias: Tensor,
        shift: Tensor | None = None,
        scale: Tensor | None = None,
        temperature: float = 1.0,
        risk: Tensor = DECIDED[:, None],
    ) -> None:
        """Write a solution into the state: logits are ``temperature * (weights @ (scale * (features - shift)) + bias)``.

        Args:
            weights: shape ``(classes, features)``, of any floating type; it is rounded to float32.
            bias: shape ``(classes,)``.
            shift: shape ``(features,)``; None for zeros.
            scale: shape ``(features,)``; None for ones.
            temperature: above 0.
            risk: factor and addend that make logits of risks of these, shape ``(2, classes)`` or ``(2, 1)``.

        Raises:
            ValueError: if a shape differs, a value is not finite in float32, or the temperature is not above 0.
        """
        given = {
            "weights": (self.linear.weight, weights),
            "bias": (self.linear.bias, bias),
            "shift": (self.shift, torch.zeros_like(self.shift) if shift is None else shift),
            "scale": (self.scale, torch.ones_like(self.scale) if scale is None else scale),
            "temperature": (self.temperature, torch.as_tensor(temperature)),
            "risk": (self.risk, risk.expand_as(self.risk)),
        }
        for name, (own, value) in given.items():
            if value.shape != own.shape or not bool(value.to(own.dtype).isfinite().all()):
                raise ValueError(f"{name} must be finite and of shape {tuple(own.shape)}, got {tuple(value.shape)}")
        if temperature <= 0:
            raise ValueError(f"temperature must be above 0, got {temperature}")
        for own, value in given.values():
            own.copy_(value)


def depth_head(network: nn.Module) -> DepthHead:
    """The head of a network that was built with ``head="depths"``.

    Raises:
        ValueError: if it has another head.
    """
    head = head_of(network)
    if not isinstance(head, DepthHead):
        raise ValueError(f"{type(network).__name__} has no head of several depths: build it with head=depths")
    return head


def risk_logits(network: nn.Module, logits: Tensor) -> Tensor:
    """Logits of probabilities at the classes' shares of training images, from those by which a network decides.

    They are the same but for a head in closed form, see :meth:`DepthHead.risks`.

    Args:
        network: whose logits they are.
        logits: shape ``(n, classes)``, also means over views.
    """
    heads = (module for module in network.modules() if isinstance(module, DepthHead))
    return head.risks(logits) if (head := next(heads, None)) else logits


class RiskNetwork(nn.Module):
    """A network that gives the logits of risks, see :func:`risk_logits`.

    Args:
        network: gives the logits of decisions.
        turned: whether logits are averaged over an image and the image turned by 180 degrees (``problem.test_view``).
    """

    def __init__(self, network: nn.Module, turned: bool) -> None:
        super().__init__()
        self.network, self.turned = network, turned

    def logits(self, images: Tensor) -> Tensor:
        """Map images ``(batch, channels, height, width)`` to logits of decisions."""
        logits: Tensor = self.network(images)
        return (logits + self.network(images.flip(2, 3))) / 2 if self.turned else logits

    def forward(self, images: Tensor) -> Any:
        """Map images to logits of risks."""
        return risk_logits(self.network, self.logits(images))


class AnsweringNetwork(RiskNetwork):
    """A network that gives the probabilities of risks and of decisions; see :class:`RiskNetwork`."""

    def __init__(self, network: nn.Module, turned: bool, task: Task) -> None:
        super().__init__(network, turned)
        self.task = task

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Map images to risks, at the classes' shares of training images, and to the probabilities of decisions."""
        logits = self.logits(images)
        return self.task.probabilities(risk_logits(self.network, logits)), self.task.probabilities(logits)


def with_risks(content: Any) -> Any:
    """Nested states with ``risk`` for heads on several depths that were saved without: their risks are their decisions."""
    if isinstance(content, list):
        return [with_risks(value) for value in content]
    if not isinstance(content, dict):
        return content
    whole: dict[Any, Any] = {}
    for name, value in content.items():
        whole[name] = with_risks(value)
        head = str(name).removesuffix("temperature")
        if head != name and f"{head}linear.weight" in content and f"{head}risk" not in content:
            classes = len(content[f"{head}linear.weight"])
            whole[f"{head}risk"] = DECIDED[:, None].repeat(1, classes).view(torch.int32)
    return whole


@torch.no_grad()
def forget_risks(network: nn.Module) -> None:
    """Let risks be decisions, before training that learns the classes' shares itself."""
    for head in network.modules():
        if isinstance(head, DepthHead):
            head.risk.copy_(DECIDED[:, None].expand_as(head.risk))


class DepthNetwork(nn.Module):
    """A backbone with a :class:`DepthHead`; its other layers keep their names.

    Args:
        network: whose layers it takes over.
        chain: names of the modules that images pass one after the other, up to the pooling; ``name.*`` for the children of
            a sequence.
        taps: channels after the tapped modules of the chain, by full name, in the chain's order.
        classes: of the logits.
        reads_last: whether the pooled last layer is a feature, too; else nothing after the last tap is.
    """

    def __init__(
        self, network: nn.Module, chain: Sequence[str], taps: Mapping[str, int], classes: int, reads_last: bool = True
    ) -> None:
        super().__init__()
        name, head = head_name(network), head_of(network)
        names = chain_names(network, chain)
        read = names if reads_last else names[: max(map(names.index, taps)) + 1]
        self._chain, self._taps, self._carried = read, dict(taps), 0
        # In a tuple, because nn.Module would register it as a child; it has neither parameters nor buffers.
        self._pool = (without(network, [*names, name]) if reads_last else _NoFeatures(),)
        self._pooled = embedding_width(head) if reads_last else 0
        for child, module in network.named_children():
            self.add_module(child, module)
        dropouts = [module.p for module in head.modules() if isinstance(module, nn.Dropout)]
        width = 2 * sum(taps.values()) + self._pooled
        replace_module(self, name, DepthHead(width, classes, dropouts[0] if dropouts else 0.0))

    def forward(self, images: Tensor) -> Tensor:
        """Map images ``(batch, channels, height, width)``, or what the network's front made of them, to logits."""
        return head_of(self)(self._features(images))

    def freeze(self, frozen: Sequence[str]) -> nn.Module:
        """Frozen modules, from the chain's first one on, as one module to put in their place.

        It gives maps with the taps among these modules beside them, or with the whole chain the features.
        """
        taps = {name: width for name, width in self._taps.items() if name in frozen}
        whole = set(frozen).issuperset(self._chain)
        layers = {name: self.get_submodule(name) for name in frozen if name in self._chain}
        front = _PackedLayers(layers, taps, self._pool[0] if whole else None)
        self._carried = embedding_width(head_of(self)) if whole else 2 * sum(taps.values())
        self._taps = {name: width for name, width in self._taps.items() if name not in taps}
        return front

    @property
    def backbone(self) -> nn.Module:
        """The network whose layers these are, without chain and head."""
        return self._pool[0]

    @property
    def read_layers(self) -> list[nn.Module]:
        """The layers whose maps the head reads: the taps, and the last of the chain, which may be one; without taps none."""
        return [self.get_submodule(name) for name in dict.fromkeys((*self._taps, self._chain[-1])) if self._taps]

    def _features(self, images: Tensor) -> Tensor:
        if not self._carried:
            maps, pooled = _pass(((name, self.get_submodule(name)) for name in self._chain), self._taps, images)
            return torch.cat([*pooled, self._pool[0](maps)], dim=1)
        first, *others = self._chain
        maps, carried = _unpacked(self.get_submodule(first)(images), self._carried)
        if not maps.shape[1]:
            return carried
        maps, pooled = _pass(((name, self.get_submodule(name)) for name in others), self._taps, maps)
        return torch.cat([carried, *pooled, self._pool[0](maps)], dim=1)


def depth_features(network: nn.Module, images: Tensor) -> Tensor:
    """The features that a network's :class:`DepthHead` reads, without dropout and before the head's scaling.

    Args:
        network: built with ``head="depths"``, in evaluation mode.
        images: in [0, 1], shape ``(batch, channels, height, width)``, or what the network's front made of them.

    Returns:
        Shape ``(batch, head_of(network).features)``, float32, on the network's device.

    Raises:
        ValueError: if the network has no such head, or is in training mode.
    """
    if not isinstance(network, DepthNetwork):
        raise ValueError(f"{type(network).__name__} has no features of several depths: build it with head=depths")
    if network.training:
        raise ValueError(
            "the network must be in evaluation mode: in training mode images of a batch depend on each other"
        )
    single = partial(torch.autocast, images.device.type, enabled=False)
    return Forward(split_network(network).encoder, precision=single)(images).float()


def moments(maps: Tensor) -> list[Tensor]:
    """Mean and standard deviation over the positions of maps ``(batch, channels, h, w)``, each ``(batch, channels)``.

    The deviation is that of the positions themselves, not an estimate for others: of one position it is 0.

    Example:
        >>> [found.tolist() for found in moments(torch.tensor([[[[1.0, 3.0]]]]))]
        [[[2.0]], [[1.0]]]
    """
    deviation, mean = torch.std_mean(maps, dim=(2, 3), correction=0)
    return [mean, deviation]


class _NoFeatures(nn.Module):
    """In place of a pooling whose features are not read."""

    def forward(self, maps: Tensor) -> Tensor:
        """Map maps ``(batch, channels, h, w)`` to ``(batch, 0)``."""
        return maps[:, :0, 0, 0]


class _PackedLayers(nn.Module):
    """Layers that give maps with the moments of tapped layers beside them, or with the pooling all features.

    Features have shape ``(batch, features, 1, 1)``.
    """

    def __init__(self, layers: Mapping[str, nn.Module], taps: Mapping[str, int], pool: nn.Module | None) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers.values())
        self.names, self.taps, self.pool = tuple(layers), dict(taps), pool

    def get_extra_state(self) -> Tensor:
        """The taps as bytes, so that the digest of a front depends on the layers that it reads."""
        return torch.tensor(list(repr(self.taps).encode()), dtype=torch.uint8)

    def forward(self, images: Tensor) -> Tensor:
        """Map images to one tensor of four dimensions."""
        maps, pooled = _pass(zip(self.names, self.layers, strict=True), self.taps, images)
        if self.pool is not None:
            return torch.cat([*pooled, self.pool(maps)], dim=1)[:, :, None, None]
        return _packed(maps, torch.cat(pooled, dim=1)) if pooled else maps


def _pass(
    layers: Iterable[tuple[str, nn.Module]], taps: Mapping[str, int], maps: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """The maps after named layers, and the moments of the tapped ones."""
    pooled: list[Tensor] = []
    for name, layer in layers:
        maps = layer(maps)
        if name in taps:
            pooled += moments(maps)
    return maps, pooled


def _packed(maps: Tensor, numbers: Tensor) -> Tensor:
    """Maps ``(batch, channels, h, w)`` with numbers ``(batch, n)`` in further channels, filled up with zeros.

    So what a front gives is one tensor, which a batch is made of and a cache keeps.
    """
    height, width = maps.shape[2:]
    channels = -(-numbers.shape[1] // (height * width))
    filled = F.pad(numbers, (0, channels * height * width - numbers.shape[1]))
    return torch.cat([maps, filled.reshape(-1, channels, height, width)], dim=1)


def _unpacked(packed: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The maps and the ``count`` numbers that :func:`_packed` put together."""
    channels = packed.shape[1] + -count // (packed.shape[2] * packed.shape[3])
    return packed[:, :channels], packed[:, channels:].flatten(1)[:, :count]
