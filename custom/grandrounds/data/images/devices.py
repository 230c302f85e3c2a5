"""Four imaginary devices: what makes the pictures of one hospital differ from those of another.

The differences are those between real devices: white balance, contrast, sharpness, sensor noise and the fall-off of
light towards the corners. Phantoms are taken with them, and a site can retake its images with one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from grandrounds.seeding import numpy_generator

Scene = NDArray[np.float64]


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
DEVICES = tuple(_DEVICES)


def device_named(name: str) -> Device:
    """The device of that name.

    Raises:
        ValueError: if there is none.
    """
    if name not in _DEVICES:
        raise ValueError(f"device must be one of {', '.join(DEVICES)}, got {name!r}")
    return _DEVICES[name]


def take_picture(scene: Scene, device: Device, generator: np.random.Generator) -> NDArray[np.uint8]:
    """Take a picture of a scene: blur, light fall-off, white balance, contrast, noise, 8 bits, in this order.

    The scene is reflectance between 0 and 1, shape ``(size, size, 1 or 3)``, as the picture's; a grey one has green's gain.
    """
    gain = device.white_balance if scene.shape[2] == len(device.white_balance) else device.white_balance[1]
    spread = _spread(len(scene), device.blur)
    seen = np.einsum("iy,yxc,jx->ijc", spread, scene, spread, optimize=True)
    axis = np.linspace(-1, 1, len(scene))
    seen *= 1 - device.vignetting * (axis[:, None] ** 2 + axis[None, :] ** 2)[..., None] / 2
    seen = (seen * gain - 0.5) * device.contrast + 0.5
    seen += generator.normal(0, device.noise, seen.shape)
    return np.asarray(np.rint(255 * np.clip(seen, 0, 1)), dtype=np.uint8)


def retaken(image: NDArray[np.uint8], name: str) -> NDArray[np.uint8]:
    """An image as this device would show it; the same image always has the same noise.

    Args:
        image: shape ``(size, size, 1 or 3)``.
        name: of the device.

    Raises:
        ValueError: if there is no such device.
    """
    generator = numpy_generator(name, hashlib.sha256(image.tobytes()).hexdigest())
    return take_picture(image / 255, device_named(name), generator)


def _spread(size: int, blur: float) -> Scene:
    """Gaussian point spread along one axis as a matrix; rows sum to one, so borders do not darken."""
    offsets = np.subtract.outer(np.arange(size), np.arange(size)) / (blur * size)
    weights = np.exp(-0.5 * offsets**2)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))
