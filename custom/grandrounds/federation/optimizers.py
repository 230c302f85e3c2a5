"""Adam and SGD that do not wait for torch's compiler.

Torch's own import it when the first of them is made and in each step, to mark their methods as not to be compiled. Nothing
is compiled here, and the import takes a process longer than the training of a short task; where FLARE starts a process for
every task it is paid for each. In all else these classes are torch's: the same updates, the same states.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

MARKED = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")

Kind = TypeVar("Kind", bound=torch.optim.Optimizer)


def _plain(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method without torch's mark around it."""
    plain: Callable[..., Any] = getattr(method, "__wrapped__", method)
    return plain


def _without_compiler(kind: type[Kind]) -> type[Kind]:
    methods = {name: _plain(getattr(kind, name)) for name in MARKED}
    # Beside marking, what torch has around a step keeps gradients off.
    step = torch.no_grad()(_plain(kind.step))
    described = f"torch.optim.{kind.__name__}, without waiting for the compiler."
    return cast(type[Kind], type(kind.__name__, (kind,), {**methods, "step": step, "__doc__": described}))


Adam = _without_compiler(torch.optim.Adam)
SGD = _without_compiler(torch.optim.SGD)
