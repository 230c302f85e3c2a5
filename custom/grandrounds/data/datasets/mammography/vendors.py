"""Mini-MIAS as three imaginary vendors would show it, to try out methods that make up for devices.

All films of mini-MIAS come from one place. What is drawn here differs in contrast curve, sharpness and noise, is marked as
simulated wherever it goes, and says nothing of real devices.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from scipy import ndimage

from grandrounds.data.datasets.mammography.records import FINDINGS, Mammogram, gravest
from grandrounds.data.images.breast_mask import Levels
from grandrounds.data.images.mammogram import read_mammogram
from grandrounds.data.images.readers import ImageReader, open_images
from grandrounds.errors import ConfigurationError
from grandrounds.files import put_in_place, temporary_sibling, write_json
from grandrounds.seeding import numpy_generator

RECORD = "simulated_vendors.json"
WHITE = 65_535


@dataclass(frozen=True)
class Vendor:
    """How a device shows a film.

    Attributes:
        gamma: exponent of the contrast curve on levels in [0, 1]; below one dark tissue becomes brighter.
        blur: standard deviation of the point spread, as a share of the longer side.
        noise: standard deviation of the noise of a white pixel; it grows with the root of the level, as quanta do.
    """

    gamma: float
    blur: float
    noise: float


SIMULATED_VENDORS: Mapping[str, Vendor] = MappingProxyType(
    {
        "simulated-1": Vendor(gamma=1.0, blur=0.0, noise=0.005),
        "simulated-2": Vendor(gamma=0.6, blur=0.003, noise=0.02),
        "simulated-3": Vendor(gamma=1.7, blur=0.0015, noise=0.04),
    }
)


def as_shown(levels: Levels, vendor: Vendor, generator: np.random.Generator) -> Levels:
    r"""A film as a vendor's device shows it: blurred, under its contrast curve, with its noise.

    .. math:: y = z^{\gamma} + \sigma \sqrt{z^{\gamma}} \, \epsilon, \qquad z = G_b * x

    Args:
        levels: :math:`x`, in [0, 1], shape ``(H, W)``.
        vendor: the device.
        generator: where the noise comes from.

    Returns:
        The same shape, clipped to [0, 1].

    Example:
        >>> as_shown(np.float32([[0.0, 0.25, 1.0]]), Vendor(0.5, 0.0, 0.0), np.random.default_rng(0)).tolist()
        [[0.0, 0.5, 1.0]]
    """
    seen = ndimage.gaussian_filter(levels, vendor.blur * max(levels.shape)) if vendor.blur > 0 else levels
    curved = np.clip(seen, 0, 1) ** vendor.gamma
    noisy = curved + vendor.noise * np.sqrt(curved) * generator.standard_normal(levels.shape, np.float32)
    return np.asarray(np.clip(noisy, 0, 1), np.float32)


def deal_vendors(mammograms: Sequence[Mammogram], generator: np.random.Generator) -> tuple[Mammogram, ...]:
    """Give every patient a simulated vendor at random, each vendor as many of each finding as the others, within one.

    Args:
        mammograms: the images; a patient counts as of the gravest finding.
        generator: where the randomness comes from.
    """
    findings = {one.patient: gravest([m.finding for m in mammograms if m.patient == one.patient]) for one in mammograms}
    names = list(SIMULATED_VENDORS)
    vendor_of: dict[str, str] = {}
    for finding in FINDINGS:
        patients = [patient for patient, own in findings.items() if own == finding]
        for position in generator.permutation(len(patients)):
            vendor_of[patients[position]] = names[len(vendor_of) % len(names)]
    return tuple(replace(one, vendor=vendor_of[one.patient]) for one in mammograms)


def render_vendors(
    mammograms: Sequence[Mammogram], images: Path, folder: Path, seed: int
) -> tuple[tuple[Mammogram, ...], Path]:
    """Write every film as its simulated vendor shows it, as 16-bit PNG files; what is there already is used again.

    Args:
        mammograms: the films.
        images: folder or archive they are in.
        folder: where the pictures go, ``VENDOR/NAME.png``; made here, or by an earlier call with the same arguments.
        seed: of vendors and noise.

    Returns:
        The records of the pictures, and their folder.

    Raises:
        ConfigurationError: if the folder holds something else.
        DataError: if a film cannot be read.
    """
    dealt = deal_vendors(mammograms, numpy_generator(seed, "mammograms", "vendors"))
    shown = tuple(replace(one, image=f"{one.vendor}/{Path(one.image).stem}.png") for one in dealt)
    with open_images(images) as reader:
        record = _record(reader.fingerprint([one.image for one in dealt]), seed)
        if folder.exists() and any(folder.iterdir()):
            _require_same(folder, record)
            return shown, folder
        with temporary_sibling(folder) as temporary:
            for film, picture in zip(dealt, shown, strict=True):
                _render(reader, film, temporary / picture.image, seed)
            write_json(temporary / RECORD, record)
            put_in_place(temporary, folder)
    return shown, folder


def _record(fingerprint: str, seed: int) -> dict[str, Any]:
    vendors = {name: asdict(vendor) for name, vendor in SIMULATED_VENDORS.items()}
    return {"simulated": True, "films": fingerprint, "seed": seed, "vendors": vendors}


def _require_same(folder: Path, record: Mapping[str, Any]) -> None:
    try:
        same = json.loads((folder / RECORD).read_text(encoding="utf-8")) == record
    except (OSError, ValueError):
        same = False
    if not same:
        raise ConfigurationError(
            f"{folder} holds other files than these simulated vendors; name an empty folder (simulated_vendors)"
        )


def _render(reader: ImageReader, film: Mammogram, path: Path, seed: int) -> None:
    from PIL import Image

    levels, _ = read_mammogram(reader.read_bytes(film.image), film.image)
    brightest = max(float(levels.max()), 1.0)
    generator = numpy_generator(seed, "mammograms", "noise", film.image)
    picture = as_shown(levels / np.float32(brightest), SIMULATED_VENDORS[film.vendor], generator)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.rint(picture * WHITE).astype(np.uint16)).save(path, compress_level=1)
