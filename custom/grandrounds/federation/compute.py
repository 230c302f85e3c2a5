"""Where to compute."""

from __future__ import annotations

import torch

from grandrounds.errors import ConfigurationError


def choose_device(name: str) -> torch.device:
    """The device that an option names.

    Args:
        name: ``auto`` (a GPU if there is one), ``cpu`` or ``cuda[:index]``.

    Raises:
        ConfigurationError: if it is no device, or not here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigurationError(f"device must be auto, cpu or cuda[:index], got {name!r}") from error
    if device.type not in ("cpu", "cuda"):
        raise ConfigurationError(f"device must be auto, cpu or cuda[:index], got {name!r}")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigurationError(f"device is {name!r}, but torch finds no GPU here; use device=cpu or auto")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigurationError(f"device is {name!r}, but the last GPU here is cuda:{torch.cuda.device_count() - 1}")
    return device
