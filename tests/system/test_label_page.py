"""The page on which a site labels images, in a browser: what it saves is a table that is imported with these labels."""

import csv
import json
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from grandrounds.csv_files import csv_bytes
from grandrounds.data.manifest import Record, read_manifest, write_manifest
from grandrounds.data.site import locate_dataset
from grandrounds.reporting.local import write_label_page
from grandrounds.seeding import numpy_generator
from tests.federations import await_true

from .browser import Window, installed_browser

CLASSES = ("=a", "b <i>&amp;", 'c, "d"')
UNLABELLED = ("=1.png", "a 'b' <u>.png", "c.png", "d,e.png")


@pytest.fixture
def window(tmp_path):
    opened = Window(installed_browser(), tmp_path / "profile")
    yield opened
    opened.close()


@pytest.fixture
def site(tmp_path):
    """A site with labelled images, four without a label, of which three are on its list; returns its folder in the run."""
    images, run = tmp_path / "images", tmp_path / "run"
    images.mkdir()
    run.mkdir()
    pixels = numpy_generator("labels")
    records = [
        Record(f"{name}{number}.png", CLASSES[number % 3], ("train", "val", "test")[number // 2], f"P-{name}{number}")
        for name in "xyz"
        for number in range(6)
    ]
    records += [Record(name, split="train", more=(("age", "45"),)) for name in UNLABELLED]
    for record in records:
        Image.fromarray(pixels.integers(0, 255, (40, 60, 3), np.uint8)).save(images / record.image)
    write_manifest(records, tmp_path / "manifest.csv")
    described = {"datasets": {"skin": {"manifest": "manifest.csv", "root": "images"}}}
    (tmp_path / "grandrounds.json").write_text(json.dumps(described))
    with (run / "label_next.csv").open("w", newline="") as stream:
        lines = [("image", "meant"), ("'=1.png", "'=a"), (UNLABELLED[1], CLASSES[1]), (UNLABELLED[3], CLASSES[2])]
        csv.writer(stream).writerows(lines)
    return run


def test_the_table_that_the_page_saves_is_imported_with_the_labels_that_were_clicked(site, window, tmp_path):
    page, images, unreadable = write_label_page(site, "site-1", locate_dataset("site-1", "skin", [tmp_path]), CLASSES)
    assert (images, unreadable) == (3, [])
    assert page.stat().st_mode & 0o077 == 0
    for width in (390, 1280):
        window.open(f"file://{page}", width)
        assert window.value("document.documentElement.scrollWidth") == width
    shown = window.value("[...document.querySelectorAll('legend')].map((name) => name.textContent)")
    assert shown == [UNLABELLED[0], UNLABELLED[1], UNLABELLED[3]]
    assert window.value("document.querySelector('.answers').textContent.trim().split(/\\s*\\n\\s*/)") == [
        *CLASSES,
        "cannot tell",
    ]
    for number, answer in ((1, 0), (2, 1), (3, "")):
        window.click(f'fieldset:nth-of-type({number}) input[value="{answer}"]')
    assert window.value("document.querySelector('output').value") == "3"
    (tmp_path / "saved").mkdir()
    window.save_into(tmp_path / "saved")
    window.click("button")
    labelled = tmp_path / "saved" / "labelled.csv"
    await_true(labelled.is_file, 30)
    assert not window.complaints
    expected = {UNLABELLED[0]: CLASSES[0], UNLABELLED[1]: CLASSES[1]}
    assert labelled.read_bytes() == csv_bytes(
        ["image", "label", "labelled"], [(*of_image, 1) for of_image in expected.items()]
    )
    place = ["--root", tmp_path / "images", "--sites", "1", "--out", tmp_path / "out"]
    words = ["import", tmp_path / "manifest.csv", "--metadata", labelled, *place]
    call = [sys.executable, "-m", "grandrounds", *map(str, words)]
    ended = subprocess.run(call, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    (manifest,) = (tmp_path / "out").glob("*/manifest.csv")
    before = {record.image: record for record in read_manifest(tmp_path / "manifest.csv")}
    after = {record.image: record for record in read_manifest(manifest)}
    assert {name: record.label for name, record in after.items() if record != before[name]} == expected
    assert all(after[name].labelled and after[name].more == (("age", "45"),) for name in expected)
