"""The page on which a site labels its images: what it holds of the site, and images that cannot be read."""

import json
import re

import pytest

from grandrounds.csv_files import write_csv
from grandrounds.data.manifest import Record, write_manifest
from grandrounds.data.site import locate_dataset
from grandrounds.errors import DataError
from grandrounds.reporting.local import write_label_page
from tests.federations import write_pictures

LISTED = ["=u0.png", "u1.png"]


@pytest.fixture
def site(tmp_path):
    """A site with a list of two of its images; returns what writes the page."""
    unlabelled = [*LISTED, "u2.png"]
    labelled = [
        Record(f"{name}.png", name, patient=f"patient-{name}", more=(("centre", "east wing"),)) for name in ("a", "b")
    ]
    write_pictures(tmp_path / "images", [record.image for record in labelled] + unlabelled)
    write_manifest(labelled + [Record(name, patient="Smith") for name in unlabelled], tmp_path / "manifest.csv")
    described = {"datasets": {"skin": {"manifest": "manifest.csv", "root": "images"}}}
    (tmp_path / "grandrounds.json").write_text(json.dumps(described))
    write_csv(tmp_path / "label_next.csv", ["image", "meant"], [(name, "a") for name in LISTED])
    return lambda: write_label_page(tmp_path, "site-1", locate_dataset("site-1", "skin", [tmp_path]), ["=a", "b"])


def test_the_page_holds_the_images_to_label_and_nothing_else_of_the_site(site):
    path, images, unreadable = site()
    page = path.read_text()
    content = re.search(r'id="content">(.*?)</script>', page)[1]
    assert json.loads(content) == {"images": ["'=u0.png", "u1.png"], "labels": ["'=a", "b"]}
    assert (images, unreadable) == (2, [])
    assert not re.search(r"patient-|Smith|u2\.png|a\.png|centre|east wing", page.partition("<main>")[2])


def test_an_image_that_cannot_be_read_is_left_out_and_named(site, tmp_path):
    (tmp_path / "images" / LISTED[0]).write_bytes(b"torn")
    path, images, (reason,) = site()
    page = path.read_text()
    assert images == 1
    assert LISTED[0] in reason
    assert re.findall("<legend>(.*?)</legend>", page) == ["u1.png"]
    assert LISTED[0] in page.partition("Left out: ")[2].partition("</p>")[0]
    (tmp_path / "images" / LISTED[1]).unlink()
    with pytest.raises(DataError, match="no image of the list can be read"):
        site()
