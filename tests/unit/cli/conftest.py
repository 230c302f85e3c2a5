import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from grandrounds.cli import build_app
from grandrounds.data.manifest import Record
from grandrounds.data.partition.files import write_partition

CLASSES = ("nevus", "melanoma")
SPLITS = ("train", "train", "train", "train", "val", "val", "test", "test")


@pytest.fixture
def run() -> Callable[..., Result]:
    """Run the command line with these arguments."""
    return lambda *arguments: CliRunner().invoke(build_app(), [str(argument) for argument in arguments])


@pytest.fixture
def images(tmp_path: Path) -> Callable[[str, int], list[str]]:
    """Write that many noise images of a site; returns their names under ``tmp_path / "images"``."""

    def write(site: str, count: int) -> list[str]:
        generator = np.random.default_rng(len(site) + count + ord(site[-1]))
        names = [f"{site}/{number}.png" for number in range(count)]
        for name in names:
            path = tmp_path / "images" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(generator.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(path)
        return names

    return write


@pytest.fixture
def sites_dir(tmp_path: Path, images: Callable[[str, int], list[str]]) -> Callable[..., Path]:
    """Write a partition of ``count`` sound sites of eight images each; ``extra`` adds or replaces sites."""

    def make(count: int, **extra: Sequence[Record]) -> Path:
        sites = {f"site-{number}": sound(images(f"site-{number}", 8)) for number in range(1, count + 1)}
        sites |= {name.replace("_", "-"): list(records) for name, records in extra.items()}
        folder = tmp_path / "sites"
        write_partition(sites, folder, "skin", tmp_path / "images", CLASSES, {"scheme": "test"})
        return folder

    return make


def sound(names: Sequence[str]) -> list[Record]:
    return [
        Record(name, CLASSES[index % 2], split=split, patient=name, source=f"clinic-{index % 2}")
        for index, (name, split) in enumerate(zip(names, SPLITS, strict=True))
    ]


@pytest.fixture
def tiny() -> list[str]:
    """Options that make a run as small as it can be."""
    return ["--rounds=1", "--image-size=32", "--set=executor.steps=1", "--set=executor.batch_size=2"]


def summary(**changes: Any) -> dict[str, Any]:
    base = {
        "status": "finished",
        "rounds_done": 2,
        "selected": {"round": 1, "metric": "balanced_accuracy", "score": 0.5},
        "test": {
            "site-1": {"common.n": 3, "common.balanced_accuracy": 0.25, "common.f1_weighted": 0.5},
            "site-2": {"common.n": 1, "common.balanced_accuracy": 0.75, "common.f1_weighted": 1.0},
            "site-3": {"common.n": 0},
        },
        "bytes": {"site-1": {"down.global": 1_000_000, "up.update": 400_000}, "site-2": {"down.peer-1": 2_000_000}},
        "rounds": [{"round_seconds": 30.0}, {"round_seconds": 45.0}],
    }
    return json.loads(json.dumps(base | changes))


@pytest.fixture
def make_summary() -> Callable[..., dict[str, Any]]:
    """A finished run of two rounds with three sites; keyword arguments replace entries."""
    return summary
