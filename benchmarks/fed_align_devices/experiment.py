"""Fed-Align-CL between three devices with one share of malignant images; the division is in ``protocol.md``.

Site 1 has Rosendahl's images, site 2 one half of those of ViDIR's modern device, and site 3 the other half as a synthetic
device would take them. The arms and measures are those of ``fed_align_cl_ham10000``. In a method with a rule for
``embeddings`` each site has a privacy gate, which clips each embedding that leaves and adds noise.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.experiment import Row, Run, install_policy
from benchmarks.fed_align_cl_ham10000.experiment import CURRICULUM, LOSSES, POOLED
from benchmarks.fed_align_cl_ham10000.experiment import Custom as FourDevices
from grandrounds.data.datasets.registry import read_dataset
from grandrounds.data.images.files.reading import Reading
from grandrounds.data.images.preparation import Preparation
from grandrounds.data.images.readers import open_images
from grandrounds.data.manifest import Record
from grandrounds.data.options import MalignancyOptions
from grandrounds.data.partition.divide import Sites, iid
from grandrounds.data.partition.files import write_partition
from grandrounds.data.partition.splits import assign_stratified
from grandrounds.privacy.accounting import spent_epsilon
from grandrounds.privacy.ledger.ledger import Ledger
from grandrounds.protocol.spending import Mechanism, Unit
from grandrounds.seeding import numpy_generator

CLASSES = ("benign", "malignant")
SHARES = {"validation": 0.02, "test": 0.25}
DATASET = "ham10000_malignancy"
DELTA = 1e-5
NUMBERS = ("samples", "batch_size", *CURRICULUM, *(name for name in LOSSES if name.startswith("loss")))
DISCRIMINATOR = [f"layers.{layer}.{kind}" for layer in (0, 2) for kind in ("weight", "bias")]


class Custom(FourDevices):
    """Divides HAM10000 as the setting's ``division`` says."""

    def record(self, row: Row) -> dict[str, Any]:
        """The row's result, with the epsilon of its embeddings alone if there is a rule for them."""
        result, rule = super().record(row), self.method(row).get("embeddings")
        if rule is not None:
            place = self._place(row, result["sites"]) / "flare"
            ledgers = [Ledger(place / site / "local" / "privacy", site).content() for site in result["sites"]]
            booked = [[booking.spending for booking in ledger.bookings] for ledger in ledgers]
            noisy = [[one for one in spent if one.mechanism is Mechanism.GAUSSIAN] for spent in booked]
            epsilon = max(spent_epsilon(spent, DELTA, Unit.RECORD) for spent in noisy)
            result["embeddings"] = {**rule, "releases": max(map(len, noisy)), "delta": DELTA, "epsilon": epsilon}
        return result

    def _trained(self, row: Row, sites_dir: Path, group: list[str]) -> Run:
        """With a rule for embeddings each site has a gate; such a run is not resumed, because it would spend more."""
        rule = self.method(row).get("embeddings")
        if rule is not None:
            place = self._place(row, group)
            shutil.rmtree(place, ignore_errors=True)
            for site in group:
                install_policy(place / "flare" / site / "local", site, _policy(rule))
        return super()._trained(row, sites_dir, group)

    def _partitions(self, row: Row) -> tuple[Path, Path]:
        setting = self.setting(row)
        read = read_dataset(DATASET, self.root, MalignancyOptions())
        sites = divided_sites(read.records, setting, row.seed)
        names = [record.image for own in sites.values() for record in own]
        devices = {record.image: setting["devices"].get(name) for name, own in sites.items() for record in own}
        size = next(int(text.partition("=")[2]) for text in self.configuration["common"] if "image_size" in text)
        images = self.workspace / f"images_{row.setting}_{row.seed}"
        _write_images(read.images, names, devices, size, images)
        sites = {name: [replace(r, image=_file(r.image)) for r in own] for name, own in sites.items()}
        pooled = {POOLED: [record for own in sites.values() for record in own]}
        folders = []
        for kind, divided in (("sites", sites), (POOLED, pooled)):
            folders.append(self.workspace / f"{kind}_{row.setting}_{row.seed}")
            write_partition(divided, folders[-1], DATASET, images, CLASSES, {"seed": row.seed})
        return folders[0], folders[1]


def divided_sites(records: Sequence[Record], setting: Mapping[str, Any], seed: int) -> dict[str, tuple[Record, ...]]:
    """The images of each site of a setting, divided into training, validation and test images."""
    divided = _SITES[setting["division"]](records, seed)
    sites = {name: _divided(own, seed, name) for name, own in divided.items()}
    for name, count in setting.get("training_images", {}).items():
        sites[name] = _with_fewer(sites[name], count, seed)
    return sites


def _three_devices(records: Sequence[Record], seed: int) -> Sites:
    """Rosendahl, and the two halves of ViDIR's modern device; one third malignant, by leaving images out."""
    rosendahl, vidir = (
        [r for r in records if r.source == f"HAM10000/{name}"] for name in ("rosendahl", "vidir_modern")
    )
    halves = iid(vidir, 2, numpy_generator(seed, "halves"))
    sites = {"site-1": rosendahl, "site-2": halves["site-1"], "site-3": halves["site-2"]}
    return {name: _with_share(own, seed, name) for name, own in sites.items()}


def _no_devices(records: Sequence[Record], seed: int) -> Sites:
    """The same images, mixed."""
    mixed = [record for own in _three_devices(records, seed).values() for record in own]
    return iid(mixed, 3, numpy_generator(seed, "mixed"))


def _one_device(records: Sequence[Record], seed: int) -> Sites:
    """Rosendahl's images in two halves."""
    return iid(_three_devices(records, seed)["site-1"], 2, numpy_generator(seed, "one device"))


_SITES = {"three": _three_devices, "mixed": _no_devices, "one": _one_device}


def _with_share(records: Sequence[Record], seed: int, site: str) -> tuple[Record, ...]:
    """Leave images of one class out, drawn at random, until one third is malignant."""
    malignant, benign = ([r for r in records if r.label == label] for label in reversed(CLASSES))
    most = min(len(malignant), len(benign) // 2)
    return (*_drawn(malignant, most, seed, site), *_drawn(benign, 2 * most, seed, site))


def _with_fewer(records: Sequence[Record], count: int, seed: int) -> tuple[Record, ...]:
    """Keep this many training images, one third of them malignant."""
    kept = [record for record in records if record.split != "train"]
    for label, images in (("malignant", count // 3), ("benign", count - count // 3)):
        kept += _drawn([r for r in records if r.split == "train" and r.label == label], images, seed, "few")
    return tuple(kept)


def _drawn(records: Sequence[Record], count: int, seed: int, purpose: str) -> list[Record]:
    order = numpy_generator(seed, purpose, records[0].label).permutation(len(records))
    return [records[index] for index in order[:count]]


def _divided(records: Sequence[Record], seed: int, site: str) -> tuple[Record, ...]:
    return assign_stratified(records, numpy_generator(seed, "splits", site), site=site, **SHARES)


def _write_images(root: Path, names: Sequence[str], devices: Mapping[str, str | None], size: int, folder: Path) -> None:
    """Write the squares that the sites train on: a pooled site cannot have one device for each image."""
    if folder.exists():
        return
    unfinished = folder.with_suffix(".unfinished")
    unfinished.mkdir(parents=True, exist_ok=True)
    with open_images(root) as reader:
        for name in names:
            preparation = Preparation(size, 3, Reading(preprocess=devices[name] or "none"))
            pixels = preparation.square(reader.encoded(name)).pixels
            Image.fromarray(np.asarray(pixels)).save(unfinished / _file(name))
    unfinished.rename(folder)


def _policy(rule: Mapping[str, Any]) -> dict[str, Any]:
    """Embeddings leave under the rule, weights and discriminators as they are, so that the cost is the rule's."""
    releases = [
        {"kind": "model_update", "name": "update", "treatment": "unmodified"},
        {"kind": "discriminator", "name": "discriminator", "treatment": "unmodified", "entries": DISCRIMINATOR},
        {"kind": "embeddings", "name": "bank", "entries": ["embeddings"], "treatment": "clip_and_noise", **rule},
    ]
    scalars = [{"name": name, "part": "train", "minimum_support": 2} for name in NUMBERS]
    return {"unit": Unit.RECORD.value, "delta": DELTA, "releases": releases, "scalars": scalars, "facts": ["backbone"]}


def _file(image: str) -> str:
    return str(Path(image).with_suffix(".png"))
