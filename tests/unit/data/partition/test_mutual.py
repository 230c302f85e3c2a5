"""Sites for mutual learning have equal sizes, one clean test set, one public set, and errors of their own that are noted."""

import csv
import io
import json
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from grandrounds.data.datasets.published import PBC_CLASSES, read_pbc
from grandrounds.data.families import CellOptions
from grandrounds.data.manifest import read_manifest
from grandrounds.data.partition.files import Replicated, read_partition, write_partition
from grandrounds.data.partition.mutual import mutual_sites
from grandrounds.data.partition.public_set import (
    PublicImage,
    PublicSet,
    list_path,
    list_public_set,
    open_public_set,
)
from grandrounds.data.partition.schemes import make_partition
from grandrounds.data.site import locate_dataset, read_site_config
from grandrounds.errors import ConfigurationError, DataError

SITES = ("site-1", "site-2", "site-3", "site-4")
PER_CLASS = (40, 8, 24, 16, 30, 12, 50, 20)  # 200 in all


def read_list(path):
    """The public set that a list names."""
    with path.open(newline="") as stream:
        _, *rows = csv.reader(stream)
    return PublicSet(tuple(PublicImage(*row) for row in rows))


def png(number):
    pixels = np.random.default_rng(number).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    """A PBC Barcelona of 200 small images, in the small layout."""
    root = tmp_path_factory.mktemp("pbc")
    rows = [
        (f"{label}/{n}.png", label) for label, count in zip(PBC_CLASSES, PER_CLASS, strict=True) for n in range(count)
    ]
    table = "".join(f"{image},{label},PBC\n" for image, label in rows)
    (root / "pbc_barcelona_manifest.csv").write_text("image,label,source\n" + table)
    with zipfile.ZipFile(root / "pbc_barcelona_96.zip", "w") as opened:
        for number, (image, _) in enumerate(rows):
            opened.writestr(image, png(number))
    return root


def make(cells, out, **choices):
    return make_partition("pbc", cells, out, **choices)


def records_of(out, site, split=None):
    records = read_manifest(out / site / "manifest.csv", PBC_CLASSES)
    return [record for record in records if split in (None, record.split)]


def names(records):
    return {record.image for record in records}


def test_public_test_and_private_images_are_the_whole_data_set_once(cells, tmp_path):
    description = make(cells, tmp_path / "out")
    public = names(read_manifest(tmp_path / "out" / "site-1" / "public.csv"))
    test = names(records_of(tmp_path / "out", "site-1", "test"))
    own = {site: names(r for r in records_of(tmp_path / "out", site) if r.split != "test") for site in SITES}
    assert list(description["sites"]) == list(SITES)
    assert (len(public), len(test), [len(images) for images in own.values()]) == (100, 20, [20] * 4)
    assert len(public | test | set().union(*own.values())) == 200


def test_all_sites_have_the_same_clean_test_images_in_the_proportions_of_the_classes(cells, tmp_path):
    make(cells, tmp_path / "out", noise="pair", noise_rate=1.0)
    tests = [records_of(tmp_path / "out", site, "test") for site in SITES]
    assert all(records == tests[0] for records in tests)
    assert all(record.image.startswith(f"{record.label}/") for record in tests[0])
    counts = Counter(record.label for record in tests[0])
    assert [counts[name] for name in PBC_CLASSES] == pytest.approx([count / 10 for count in PER_CLASS], abs=1)


def test_the_public_set_is_the_same_everywhere_and_has_no_labels(cells, tmp_path):
    description = make(cells, tmp_path / "out", public_size=8)
    lists = [(tmp_path / "out" / site / "public.sha256.csv").read_bytes() for site in SITES]
    assert len(set(lists)) == 1
    for site in SITES:
        location = locate_dataset(site, "public", [tmp_path / "out"])
        assert all(not record.label for record in read_manifest(location.manifest))
        listed = read_list(list_path(location.manifest))
        opened, images = open_public_set(location.root, 8, 3, tmp_path / "cache", [i.image for i in listed.images])
        assert opened.digest == listed.digest == description["public_set"]["sha256"]
        assert len(images) == description["public_set"]["images"] == 100
    assert set(read_site_config(tmp_path / "out" / "site-1" / "grandrounds.json")) == {"cells", "public"}


def test_without_a_size_the_list_has_the_files_hashes_alone(cells, tmp_path):
    make(cells, tmp_path / "out")
    location = locate_dataset("site-1", "public", [tmp_path / "out"])
    listed = read_list(list_path(location.manifest))
    assert {image.pixels for image in listed.images} == {""}
    opened, _ = open_public_set(location.root, 8, 3, tmp_path / "cache", [image.image for image in listed.images])
    assert [image.content for image in opened.images] == [image.content for image in listed.images]


def test_labels_are_wrong_as_they_were_drawn_and_the_clean_ones_are_noted(cells, tmp_path):
    description = make(cells, tmp_path / "out", noise="pair", noise_rate=0.5)
    wrong = 0
    for site in SITES:
        noisy = records_of(tmp_path / "out", site)
        with (tmp_path / "out" / site / "labels.csv").open() as stream:
            drawn = list(csv.DictReader(stream))
        assert all(row["image"].startswith(f"{row['clean']}/") for row in drawn)
        labels = {record.image: record.label for record in noisy}
        assert all(labels[row["image"]] == row["noisy"] for row in drawn)
        matrix = np.array(description["noise_matrices"][site])
        assert matrix.sum() == len(drawn) == 20
        assert {record.split for record in noisy if record.label != record.image.split("/")[0]} <= {"train", "val"}
        off = [(i, j) for i, j in zip(*np.nonzero(matrix), strict=True) if i != j]
        assert all(j == (i + 1) % 8 for i, j in off)
        assert description["sites"][site]["wrong_labels"] == matrix.sum() - np.trace(matrix)
        wrong += description["sites"][site]["wrong_labels"]
        classes = Counter(record.image.split("/")[0] for record in noisy if record.split != "test")
        assert description["sites"][site]["clean_classes"] == classes
    assert 20 < wrong < 60
    with (tmp_path / "out" / "site-1" / "manifest.csv").open() as stream:
        assert "clean" not in next(csv.reader(stream))


def test_every_site_has_its_own_errors_and_an_image_at_two_sites_is_refused(cells, tmp_path):
    records = read_pbc(cells)[0]
    choices = {"sites": 2, "alpha": 1e6, "validation": 0.0, "test": 0.2}
    made = mutual_sites(records, PBC_CLASSES, CellOptions(noise="symmetric", noise_rate=0.5, **choices))
    # Nearly the same classes at both sites: which of a site's images, in order, are wrong must not be the same.
    wrong = [[label.clean != label.noisy for label in drawn] for drawn in made.drawn.values()]
    assert wrong[0] != wrong[1]
    overlapping = {"site-1": made.sites["site-1"], "site-2": (*made.sites["site-2"], made.test[0])}
    shared = Replicated(made.test, list_public_set(cells / "pbc_barcelona_96.zip", ["ig/0.png"]), cells)
    with pytest.raises(DataError, match=r"image '.*' is at two sites, site-2 and every-site; give it to one"):
        write_partition(overlapping, tmp_path / "out", "cells", cells, PBC_CLASSES, {}, replicated=shared)


def test_noise_changes_labels_and_nothing_else(cells, tmp_path):
    make(cells, tmp_path / "clean")
    make(cells, tmp_path / "noisy", noise="symmetric", noise_rate=0.3)
    for site in SITES:
        clean, noisy = (records_of(tmp_path / name, site) for name in ("clean", "noisy"))
        assert [(r.image, r.split) for r in clean] == [(r.image, r.split) for r in noisy]
        assert [r.label for r in clean] != [r.label for r in noisy]
    lists = [(tmp_path / name / "site-1" / "public.sha256.csv").read_bytes() for name in ("clean", "noisy")]
    assert lists[0] == lists[1]


def test_validation_labels_get_noise_too(cells, tmp_path):
    make(cells, tmp_path / "out", noise="pair", noise_rate=1.0)
    for site in SITES:
        validation = records_of(tmp_path / "out", site, "val")
        assert len(validation) == 2
        assert all(not record.image.startswith(f"{record.label}/") for record in validation)


def test_the_same_seed_gives_the_same_files_and_another_seed_others(cells, tmp_path):
    made = [make(cells, tmp_path / str(n), seed=seed, noise="pair", noise_rate=0.3) for n, seed in enumerate((1, 1, 2))]
    digests = [
        (d["public_set"]["sha256"], [(s["sha256"], s["labels_sha256"]) for s in d["sites"].values()]) for d in made
    ]
    assert digests[0] == digests[1]
    assert digests[0][0] != digests[2][0]
    assert digests[0][1] != digests[2][1]


def test_a_public_folder_and_numbers_of_images_can_be_named(cells, tmp_path):
    (tmp_path / "images").mkdir()
    for number in range(9):
        (tmp_path / "images" / f"{number}.png").write_bytes(png(500 + number))
    choices = {"public": "folder", "public_root": tmp_path / "images", "public_images": 5, "private_images": 40}
    description = make_partition(
        "pbc", cells, tmp_path / "out", scheme="mdhfl", sites=2, validation=0.0, test=0.5, **choices
    )
    assert description["public_set"]["images"] == 5
    assert [summary["images"] for summary in description["sites"].values()] == [{"train": 10, "val": 0, "test": 20}] * 2
    listed = read_list(tmp_path / "out" / "site-2" / "public.sha256.csv")
    assert all((tmp_path / "images" / image.image).is_file() for image in listed.images)
    other = make_partition(
        "pbc",
        cells,
        tmp_path / "other",
        scheme="mdhfl",
        sites=2,
        public="pbc",
        public_root=cells,
        public_images=7,
        private_images=40,
    )
    assert other["public_set"]["images"] == 7


def test_a_changed_list_or_label_file_is_found(cells, tmp_path):
    make(cells, tmp_path / "out", noise="pair", noise_rate=0.3)
    for name in ("labels.csv", "public.sha256.csv"):
        path = tmp_path / "out" / "site-2" / name
        content = path.read_bytes()
        path.write_bytes(content + b"\n")
        with pytest.raises(DataError, match=f"site-2/{name} differs from the partition"):
            read_partition(tmp_path / "out")
        path.write_bytes(content)
    read_partition(tmp_path / "out")
    make(cells, tmp_path / "out", noise="pair", noise_rate=0.3)
    with pytest.raises(ConfigurationError, match="holds another partition"):
        make(cells, tmp_path / "out")
    make(cells, tmp_path / "out", overwrite=True)


def test_partition_json_has_no_path(cells, tmp_path):
    make(cells, tmp_path / "out", public="pbc", public_root=cells)
    text = (tmp_path / "out" / "partition.json").read_text()
    assert str(cells) not in text
    assert json.loads(text)["public"] == "pbc"


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"noise_rate": 0.2}, r"noise none has no noise_rate, got 0\.2; choose symmetric or pair"),
        ({"public": "mll23"}, "public mll23 needs public_root"),
        ({"public_root": Path("/x")}, "public_root is for public images outside the data set"),
        ({"public": "folder", "public_root": Path("/x"), "public_share": 0.2}, "public_share is for public share"),
        ({"public": "folder", "public_root": Path("/nowhere/at/all")}, "public_root /nowhere/at/all does not exist"),
        ({"labelled": 0.5}, "scheme mdhfl trains on all labels; leave labelled and labelled_images out"),
        ({"scenario": "few_labels", "labelled_sites": ["site-1"]}, "scheme mdhfl has no scenario"),
        ({"server_images": 5}, "scheme mdhfl has no scenario and no images at the server"),
    ],
)
def test_choices_that_do_not_fit_are_refused(cells, tmp_path, choices, message):
    with pytest.raises(ConfigurationError, match=message):
        make(cells, tmp_path / "out", **choices)
    assert not (tmp_path / "out").exists()


def test_more_images_than_there_are_cannot_be_had(cells, tmp_path):
    with pytest.raises(DataError, match="there are 100 private images, 101 are asked for"):
        make(cells, tmp_path / "out", private_images=101)
    with pytest.raises(DataError, match="has 100 public images, 101 are asked for"):
        make(cells, tmp_path / "out", public_images=101)
    with pytest.raises(DataError, match="give no test image; raise the share"):
        make(cells, tmp_path / "out", test=0.001)
    with pytest.raises(ConfigurationError, match="noise is for the scheme mdhfl, got scheme iid"):
        make_partition("pbc", cells, tmp_path / "out", scheme="iid", sites=2, noise="pair")


@pytest.mark.realdata
def test_half_of_the_real_cells_is_public_and_the_other_half_divided(realdata, tmp_path):
    description = make_partition(
        "pbc", realdata / "pbc", tmp_path / "out", noise="symmetric", noise_rate=0.2, public_size=32
    )
    # 5977 images: 2988 public (half, rounded to even), 598 for testing of 2989, 2391 for four sites.
    assert description["public_set"]["images"] == 2988
    sizes = [summary["images"] for summary in description["sites"].values()]
    assert [images["test"] for images in sizes] == [598] * 4
    assert [images["train"] + images["val"] for images in sizes] == [598, 598, 598, 597]
    wrong = sum(summary["wrong_labels"] for summary in description["sites"].values())
    assert wrong / 2391 == pytest.approx(0.2, abs=0.03)
