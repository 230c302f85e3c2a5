"""Drawn pictures in the manner of dermatoscopy, for demonstrations and tests on a machine without any data.

They show no disease: classes are named for what is drawn. The class is in the shape alone; area, darkness, skin, place,
texture and hair vary in the same way in every class, so that mean colours do not give it away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from grandrounds.checks import require_at_least
from grandrounds.data.images.devices import device_named, take_picture

Plane = NDArray[np.float64]
Shape = Callable[[Plane, Plane, float, np.random.Generator], Plane]

SMALLEST_SIDE = 8
SKIN = np.array([0.86, 0.67, 0.57])
PIGMENT = np.array([0.36, 0.22, 0.17])
HAIR = np.array([0.16, 0.11, 0.09])
EDGE = 0.05


def draw_phantom(
    label: str | Sequence[str], device: str, size: int, generator: np.random.Generator
) -> NDArray[np.uint8]:
    """Draw one picture by one of ``DEVICES``, shape ``(size, size, 3)``, RGB.

    Args:
        label: one of ``PHANTOM_CLASSES``, or any number of ``PHANTOM_FINDINGS``, each in a quarter of its own.
        device: which one.
        size: of the picture, in pixels.
        generator: of all that is drawn.

    Raises:
        ValueError: if the device is unknown or the picture smaller than 8 pixels.
    """
    camera = device_named(device)
    require_at_least(size, SMALLEST_SIDE, "size")
    return take_picture(_scene(label, size, generator), camera, generator)


def _findings(names: Sequence[str], x: Plane, y: Plane, generator: np.random.Generator) -> Plane:
    """Share of each pixel that small lesions in different quarters of the picture cover."""
    cover = np.zeros_like(x)
    for name, quarter in zip(names, generator.permutation(4).tolist(), strict=False):
        column, row = quarter % 2 - 0.5, quarter // 2 - 0.5
        cover = np.maximum(cover, _lesion(name, 2 * (x - column), 2 * (y - row), generator))
    return cover


def _scene(label: str | Sequence[str], size: int, generator: np.random.Generator) -> Plane:
    """Skin with a lesion (or findings) and hair; reflectance between 0 and 1, shape ``(size, size, 3)``."""
    axis = (np.arange(size) + 0.5) * 2 / size - 1
    x, y = np.meshgrid(axis, axis)
    skin = SKIN * generator.uniform(0.85, 1.08) * (1 + 0.05 * _texture(x, y, generator)[..., None])
    pigment = PIGMENT * generator.uniform(0.75, 1.3) * generator.uniform(0.9, 1.1, 3)
    depth = generator.uniform(0.45, 0.9) * (1 + 0.15 * _texture(x, y, generator))
    drawn = _lesion(label, x, y, generator) if isinstance(label, str) else _findings(label, x, y, generator)
    cover = (drawn * depth)[..., None]
    scene = skin * (1 - cover) + pigment * cover
    for _ in range(generator.integers(0, 4)):
        hair = 0.6 * _hair(x, y, generator)[..., None]
        scene = scene * (1 - hair) + HAIR * hair
    return np.clip(scene, 0, 1)


def _lesion(label: str, x: Plane, y: Plane, generator: np.random.Generator) -> Plane:
    """Share of each pixel that the lesion covers; shape, position and proportions are drawn."""
    angle, stretch = generator.uniform(0, np.pi), generator.uniform(1.0, 1.25)
    dx, dy = x - generator.uniform(-0.2, 0.2), y - generator.uniform(-0.2, 0.2)
    along = (np.cos(angle) * dx + np.sin(angle) * dy) / stretch
    across = (np.cos(angle) * dy - np.sin(angle) * dx) * stretch
    inside = _SHAPES[label](along, across, generator.uniform(0.45, 0.9), generator)
    return np.asarray(1 / (1 + np.exp(-np.clip(inside / EDGE * 2, -50, 50))))


# Each shape covers ``area`` (the picture has 4) and returns about the distance to its edge, positive inside.


def _round(x: Plane, y: Plane, area: float, generator: np.random.Generator) -> Plane:
    return _lobed(x, y, area, generator.uniform(0.0, 0.06), generator)


def _irregular(x: Plane, y: Plane, area: float, generator: np.random.Generator) -> Plane:
    return _lobed(x, y, area, generator.uniform(0.12, 0.26), generator)


def _lobed(x: Plane, y: Plane, area: float, roughness: float, generator: np.random.Generator) -> Plane:
    """A disc whose radius varies with the angle by ``roughness`` (root mean square, relative)."""
    waves = np.arange(3, 8)
    strength = generator.dirichlet(np.full(len(waves), 2.0)) ** 0.5 * roughness * 2**0.5
    phase = generator.uniform(0, 2 * np.pi, len(waves))
    ripple = (strength * np.cos(waves * np.arctan2(y, x)[..., None] + phase)).sum(axis=-1)
    radius = (area / np.pi / (1 + roughness**2)) ** 0.5 * (1 + ripple)
    return np.asarray(radius - np.hypot(x, y))


def _ring(x: Plane, y: Plane, area: float, generator: np.random.Generator) -> Plane:
    hole = generator.uniform(0.35, 0.6)
    outer = (area / np.pi / (1 - hole**2)) ** 0.5
    radius = np.hypot(x, y)
    return np.asarray(np.minimum(outer - radius, radius - hole * outer))


def _clustered(x: Plane, y: Plane, area: float, generator: np.random.Generator) -> Plane:
    number = int(generator.integers(4, 8))
    radii = (area / np.pi * generator.dirichlet(np.full(number, 12.0))) ** 0.5
    # A sunflower's spiral keeps the spots apart.
    angles = np.arange(number) * 2.39996 + generator.uniform(0, 2 * np.pi)
    reach = 0.68 * (np.arange(number) / (number - 1)) ** 0.5
    shift = generator.normal(0, 0.05, (2, number))
    distances = np.hypot(
        x[..., None] - reach * np.cos(angles) - shift[0], y[..., None] - reach * np.sin(angles) - shift[1]
    )
    return np.asarray((radii - distances).max(axis=-1))


def _texture(x: Plane, y: Plane, generator: np.random.Generator) -> Plane:
    """Smooth noise of mean 0 and variance about 1: eight plane waves."""
    waves = generator.normal(0, 4.0, (8, 2))
    phase = generator.uniform(0, 2 * np.pi, 8)
    return np.asarray(np.cos(x[..., None] * waves[:, 0] + y[..., None] * waves[:, 1] + phase).sum(axis=-1) / 2)


def _hair(x: Plane, y: Plane, generator: np.random.Generator) -> Plane:
    angle, bend = generator.uniform(0, np.pi), generator.uniform(-0.4, 0.4)
    along, across = np.cos(angle) * x + np.sin(angle) * y, np.cos(angle) * y - np.sin(angle) * x
    distance = across - generator.uniform(-0.9, 0.9) - bend * along**2
    return np.asarray(np.exp(-((distance / 0.025) ** 2)))


_SHAPES: Mapping[str, Shape] = MappingProxyType(
    {"round": _round, "irregular": _irregular, "ring": _ring, "clustered": _clustered}
)
PHANTOM_CLASSES = tuple(_SHAPES)
PHANTOM_FINDINGS = ("round", "ring", "clustered")
