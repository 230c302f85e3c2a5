"""Four imaginary dermatoscopes: what makes the pictures of one hospital differ from those of another.

The differences are those between real devices: white balance, contrast, sharpness, sensor noise and the fall-off of
light towards the corners.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

Image = NDArray[np.float64]


@dataclass(frozen=True)
class Device:
    """How a device turns a scene into a picture.

    Attributes:
        white_balance: gain of red, green and blue.
        contrast: slope around middle grey; one leaves it as it is.
        blur: standard deviation of the point spread, as a share of the picture's side.
        noise: standard deviation of the sensor noise, with white at one.
        vignetting: share of the light that the corners lose.
    """

    white_balance: tuple[float, float, float]
    contrast: float
    blur: float
    noise: float
    vignetting: float


_DEVICES: Mapping[str, Device] = MappingProxyType(
    {
        "device-1": Device((1.00, 1.00, 1.00), contrast=1.00, blur=0.008, noise=0.020, vignetting=0.10),
        "device-2": Device((1.10, 0.94, 0.78), contrast=1.20, blur=0.012, noise=0.015, vignetting=0.45),
        "device-3": Device((0.84, 0.98, 1.16), contrast=0.80, blur=0.024, noise=0.020, vignetting=0.05),
        "device-4": Device((0.92, 0.86, 1.00), contrast=0.90, blur=0.008, noise=0.060, vignetting=0.25),
    }
)
PHANTOM_DEVICES = tuple(_DEVICES)


def device_named(name: str) -> Device:
    """The device of that name.

    Raises:
        ValueError: if there is none.
    """
    if name not in _DEVICES:
        raise ValueError(f"device must be one of {', '.join(PHANTOM_DEVICES)}, got {name!r}")
    return _DEVICES[name]


def take_picture(scene: Image, device: Device, generator: np.random.Generator) -> NDArray[np.uint8]:
    """Take a picture of a scene: blur, light fall-off, white balance, contrast, noise, 8 bits, in this order.

    Args:
        scene: shape ``(size, size, 3)``, reflectance between 0 and 1.
        device: the device.
        generator: where the noise comes from.

    Returns:
        The picture, shape ``(size, size, 3)``.
    """
    spread = _spread(len(scene), device.blur)
    seen = np.einsum("iy,yxc,jx->ijc", spread, scene, spread, optimize=True)
    axis = np.linspace(-1, 1, len(scene))
    seen *= 1 - device.vignetting * (axis[:, None] ** 2 + axis[None, :] ** 2)[..., None] / 2
    seen = (seen * device.white_balance - 0.5) * device.contrast + 0.5
    seen += generator.normal(0, device.noise, seen.shape)
    return np.asarray(np.rint(255 * np.clip(seen, 0, 1)), dtype=np.uint8)


def _spread(size: int, blur: float) -> Image:
    """Gaussian point spread along one axis as a matrix; rows sum to one, so borders do not darken."""
    offsets = np.subtract.outer(np.arange(size), np.arange(size)) / (blur * size)
    weights = np.exp(-0.5 * offsets**2)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))
