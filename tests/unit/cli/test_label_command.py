"""``grandrounds label next`` after a simulation: the command that is printed works, and --sites-dir is asked for."""

import shlex

import pytest

from grandrounds.data.manifest import Record
from grandrounds.data.partition.files import write_partition

from .conftest import CLASSES, write_images

IMAGES, SITES = 60, ("site-1", "site-2")


@pytest.fixture
def sites(tmp_path):
    """A partition whose sites have labels of one image in three."""
    made = {}
    for site in SITES:
        names = write_images(tmp_path / "images", site, IMAGES)
        splits = ["train"] * (IMAGES - 8) + ["val"] * 4 + ["test"] * 4
        made[site] = [
            Record(name, CLASSES[number % 2] if number % 3 == 0 or split != "train" else "", split, patient=name)
            for number, (name, split) in enumerate(zip(names, splits, strict=True))
        ]
    write_partition(made, tmp_path / "my sites", "skin", tmp_path / "images", CLASSES, {"scheme": "test"})
    return tmp_path / "my sites"


def test_a_simulation_prints_the_command_that_writes_the_pages(run, sites, tmp_path):
    words = ["simulate", "ridge", "--sites-dir", sites, "--workspace", tmp_path / "run", "--image-size=32"]
    plain = run(*words)
    assert plain.exit_code == 0, plain.output
    assert " label next " not in plain.stdout
    result = run(*words, "--set", "controller.label_budget=10")
    assert result.exit_code == 0, result.output
    (line,) = (line for line in result.stdout.splitlines() if " label next " in line)
    command, place = shlex.split(line, comments=True)[1:], tmp_path / "run" / "state" / "ridge"
    without = run(*command[:3])
    assert without.exit_code == 1
    assert "--sites-dir" in without.stderr
    assert run(*command).exit_code == 0
    assert [(place / site / "label_next.html").is_file() for site in SITES] == [True, True]
    listed = (place / "site-1" / "label_next.csv").read_text().splitlines()[1].split(",")[0]
    (tmp_path / "images" / listed).write_bytes(b"torn")
    result = run(*command, "--site", "site-1")
    assert result.exit_code == 0, result.output
    assert listed in result.stderr
