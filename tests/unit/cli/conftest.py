import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from grandrounds.cli import COMMANDS, GROUPS, build_app
from grandrounds.data.manifest import Record
from grandrounds.data.partition.files import write_partition
from grandrounds.federation.server.record import FORMAT

CLASSES = ("nevus", "melanoma")
SPLITS = ("train", "train", "train", "train", "val", "val", "test", "test")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No command takes so long that it shows its steps, however loaded the machine is."""
    monkeypatch.setattr("grandrounds.console.progress.PATIENCE_SECONDS", 3600.0)


def run_command(*arguments: Any) -> Result:
    """Run the command line, which builds what the first word names, as the program does."""
    words = [str(argument) for argument in arguments]
    only = words[0] if words and words[0] in {*COMMANDS, *GROUPS} else ""
    return CliRunner().invoke(build_app(only), words)


@pytest.fixture(scope="session")
def run() -> Callable[..., Result]:
    """Run the command line with these arguments."""
    return run_command


@pytest.fixture
def images(tmp_path: Path) -> Callable[[str, int], list[str]]:
    """Write that many noise images of a site; returns their names under ``tmp_path / "images"``."""
    return partial(write_images, tmp_path / "images")


@pytest.fixture(scope="session")
def write_sites() -> Callable[..., Path]:
    """Write a partition of ``count`` sound sites of eight images each into a folder; ``extra`` adds or replaces sites."""

    def write(folder: Path, count: int, **extra: Sequence[Record]) -> Path:
        images = folder / "images"
        sites = {f"site-{number}": sound(write_images(images, f"site-{number}", 8)) for number in range(1, count + 1)}
        sites |= {name.replace("_", "-"): list(records) for name, records in extra.items()}
        write_partition(sites, folder / "sites", "skin", images, CLASSES, {"scheme": "test"})
        return folder / "sites"

    return write


@pytest.fixture
def sites_dir(tmp_path: Path, write_sites: Callable[..., Path]) -> Callable[..., Path]:
    """``write_sites`` into the folder of the test."""
    return partial(write_sites, tmp_path)


def write_images(folder: Path, site: str, count: int) -> list[str]:
    generator = np.random.default_rng(len(site) + count + ord(site[-1]))
    names = [f"{site}/{number}.png" for number in range(count)]
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(path)
    return names


def sound(names: Sequence[str]) -> list[Record]:
    return [
        Record(name, CLASSES[index % 2], split=split, patient=name, source=f"clinic-{index % 2}")
        for index, (name, split) in enumerate(zip(names, SPLITS, strict=True))
    ]


@pytest.fixture(scope="session")
def tiny() -> list[str]:
    """Options that make a run as small as it can be."""
    return ["--rounds=1", "--image-size=32", "--set=executor.steps=1", "--set=executor.batch_size=2"]


def summary(**changes: Any) -> dict[str, Any]:
    base = {
        "format": FORMAT,
        "status": "finished",
        "rounds_done": 2,
        "selected": {"round": 1, "metric": "balanced_accuracy", "score": 0.5},
        "records": {},
        "bytes": {"site-1": {"down.global": 1_000_000, "up.update": 400_000}, "site-2": {"down.peer-1": 2_000_000}},
        "rounds": [{"round_seconds": 30.0}, {"round_seconds": 45.0}],
        "configuration": {"problem": {"dataset": "skin", "classes": list(CLASSES)}},
        "contributions": {},
        "seconds": 75.0,
    }
    return json.loads(json.dumps(base | changes))


@pytest.fixture
def make_summary() -> Callable[..., dict[str, Any]]:
    """A finished run of two rounds with three sites; keyword arguments replace entries."""
    return summary
