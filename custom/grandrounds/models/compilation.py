"""Layers of a network that torch's compiler has made."""

from __future__ import annotations

from torch import nn

from grandrounds.models.weights import head_name


def compile_layers(network: nn.Module, compiler: str) -> None:
    """Let torch compile what comes before the head; each of the network's children by itself, when it is first called.

    Parameters, their names and their values stay as they are, and parts of :func:`~grandrounds.models.split.split_network`
    go through the same compiled layers. Copies are not compiled. Each process compiles anew, and again for batches of
    another size; on a CPU a C++ compiler must be installed.

    Args:
        network: as :func:`~grandrounds.models.registry.build_model` makes it; it is changed.
        compiler: a backend of ``torch.compile``.
    """
    head = head_name(network)
    for name, child in network.named_children():
        if name != head:
            child.compile(backend=compiler)
