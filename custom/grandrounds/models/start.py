"""The trained model that a run starts from, by name: of the server's weights folder, or the ridge head of a simulation."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from torch import Tensor, nn

from grandrounds.errors import ConfigurationError
from grandrounds.models.pretrained import named_file
from grandrounds.models.split import head_name
from grandrounds.models.weights_content import read_weights

RIDGE = "ridge"
"""The head in closed form of the run's own sites: a simulation computes it, elsewhere a file of this name has it."""
START_VARIABLE = "GRANDROUNDS_START"
"""Names the file of the ridge head that a simulation has computed."""
_NAMED_ENTRIES = 3


def load_start(network: nn.Module, name: str) -> str:
    """Load a run's trained entries into a network, in place; layers that the run had frozen stay as they are.

    Args:
        network: of the new run, with the same backbone and head, whose frozen layers have the same weights.
        name: of the weights folder, or ``ridge``.

    Returns:
        The file's SHA-256.

    Raises:
        ConfigurationError: if there is no such file, it is damaged, or it is of another network.
    """
    given = os.environ.get(START_VARIABLE) if name == RIDGE else None
    path = Path(given) if given else named_file(name).path
    state, _ = read_weights(path)
    own, prefix = network.state_dict(), f"{head_name(network)}."
    other = [entry for entry, value in state.items() if entry not in own or not _fits(value, own[entry])]
    other += [entry for entry in own if entry.startswith(prefix) and entry not in state]
    if other:
        raise ConfigurationError(
            f"controller.start_from: the weights {name!r} are of another network than the problem's "
            f"({', '.join(sorted(other)[:_NAMED_ENTRIES])}): give problem.backbone, head and classes of the run that they "
            "come from, or leave start_from out"
        )
    network.load_state_dict(state, strict=False)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _fits(given: Tensor, own: Tensor) -> bool:
    """Whether an entry can replace one of the network: a cast between whole numbers and others would change its values."""
    return given.shape == own.shape and given.is_floating_point() == own.is_floating_point()
