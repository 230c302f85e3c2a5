"""Networks that torch's compiler has made."""

from __future__ import annotations

from typing import Any

from torch import nn

COMPILER = "made_by_compiler"


def compile_network(network: nn.Module, compiler: str) -> None:
    """Let torch compile a network as a whole, when it is first called.

    Parameters, their names and their values stay as they are, and what is drawn (dropout) is drawn alike. The encoder of
    :func:`~grandrounds.models.split.split_network` is compiled for itself; copies are not. Each process compiles anew, and
    again for batches of another size, for evaluation, and without gradients; on a CPU a C++ compiler must be installed.

    Args:
        network: it is changed.
        compiler: a backend of ``torch.compile``.
    """
    options: dict[str, Any] = {"options": {"fallback_random": True}} if compiler == "inductor" else {}
    network.compile(backend=compiler, **options)
    setattr(network, COMPILER, compiler)


def compile_likewise(part: nn.Module, network: nn.Module) -> None:
    """Let torch compile a part if the network that it is of is compiled."""
    # The mark alone is no sign: a copy has it, too.
    if network._compiled_call_impl is not None:
        compile_network(part, getattr(network, COMPILER))
