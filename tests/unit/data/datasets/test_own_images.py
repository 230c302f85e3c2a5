"""Images of one's own: which folder is the site, the class, the patient and the split, and tables in their place."""

import io
import re
import shutil
import zipfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

from grandrounds.data.datasets.listed import read_image_table
from grandrounds.data.datasets.own_images import read_folder
from grandrounds.data.datasets.own_options import FolderOptions, ManifestOptions
from grandrounds.data.manifest import read_manifest
from grandrounds.data.partition.schemes import make_partition
from grandrounds.errors import ConfigurationError, DataError, SeveralReadings
from tests.federations import write_pictures

PIXELS = io.BytesIO()
Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(PIXELS, "png")


@pytest.fixture
def folder(tmp_path):
    """Write images of these names into a folder and return it."""

    def write(*names):
        for name in names:
            path = tmp_path / "images" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(PIXELS.getvalue())
        return tmp_path / "images"

    return write


def read(root, **options):
    found = read_folder(root, FolderOptions(**options))
    return [(one.image, one.label, one.split, one.patient) for one in found.records], found


def numbered(pattern, count):
    return [pattern.format(number) for number in range(count)]


def test_one_level_of_folders_is_the_classes(folder):
    rows, found = read(folder("nevus/a.png", "melanoma/b.png", "unlabelled/c.png"))
    assert rows == [("melanoma/b.png", "melanoma", "train", ""), ("nevus/a.png", "nevus", "train", ""),
                    ("unlabelled/c.png", "", "train", "")]  # fmt: skip
    assert (found.sites, found.splits) == ((), False)


def test_two_levels_are_sites_and_classes_and_the_same_number_is_another_patient_elsewhere(folder):
    root = folder("Leeds/nevus/P1_a.png", "Leeds/melanoma/P2_a.png", "York/nevus/P1_b.png", "York/melanoma/P1_c.png")
    rows, found = read(root, patient_pattern=r"/(P\d+)_")
    assert found.sites == ("Leeds", "Leeds", "York", "York")
    assert [patient for *_, patient in rows] == ["Leeds/P2", "Leeds/P1", "York/P1", "York/P1"]


@pytest.mark.parametrize(
    ("names", "options", "sites"),
    [
        (["data/nevus/a.png", "data/melanoma/b.png"], {}, ()),
        (["out/data/nevus/a.png", "out/data/melanoma/b.png"], {}, ()),
        (
            ["data/Leeds/nevus/a.png", "data/York/nevus/b.png", "data/York/melanoma/c.png"],
            {},
            ("Leeds", "York", "York"),
        ),
        (["Leeds/nevus/a.png", "Leeds/melanoma/b.png"], {"layout": "site/class"}, ("Leeds", "Leeds")),
        (["data/nevus/P1/a.png", "data/melanoma/P2/b.png"], {"layout": "class/patient"}, ()),
    ],
)
def test_a_folder_that_all_images_are_below_is_no_site_unless_the_layout_says_so(folder, names, options, sites):
    _, found = read(folder(*names), **options)
    assert {one.label for one in found.records} == {"nevus", "melanoma"}
    assert (tuple(sorted(found.sites)), bool(found.account.notes)) == (
        sites,
        "layout" not in options or "data" in names[0],
    )


def test_a_label_map_finds_a_label_however_its_accents_are_stored_and_refuses_what_no_image_has(folder):
    root = folder("na\u0308vus/a.png", "melanoma/b.png")
    rows, _ = read(root, label_map=("nävus=nevus",))
    assert [label for _, label, _, _ in rows] == ["melanoma", "nevus"]
    with pytest.raises(ConfigurationError, match=r"Melanoma.*did you mean melanoma=nevus"):
        read(root, label_map=("Melanoma=nevus",))


def test_folders_of_splits_are_kept_wherever_they_are(folder):
    rows, found = read(folder("train/nevus/a.png", "Validation/nevus/b.png", "Testing/melanoma/c.png"))
    assert {name: split for name, _, split, _ in rows} == {
        "train/nevus/a.png": "train", "Validation/nevus/b.png": "val", "Testing/melanoma/c.png": "test",
    }  # fmt: skip
    assert (found.sites, found.splits) == ((), True)


def test_folders_of_patients_need_their_layout(folder):
    root = folder("nevus/p1/a.png", "nevus/p1/b.png", "melanoma/p2/a.png")
    with pytest.raises(SeveralReadings, match="--layout class/patient"):
        read(root)
    rows, found = read(root, layout="class/patient")
    assert [(label, patient) for _, label, _, patient in rows] == [("melanoma", "p2"), ("nevus", "p1"), ("nevus", "p1")]
    assert found.sites == ()


def test_a_layout_says_what_each_folder_is(folder):
    root = folder("benign/SOB/A/P1/40X/a.png", "benign/SOB/F/P2/40X/b.png", "malignant/SOB/D/P3/100X/a.png")
    with pytest.raises(SeveralReadings, match=r"--layout 'class/\*/\*/patient/\*'"):
        read(root)
    rows, _ = read(root, layout="class/*/*/patient/*")
    assert [(label, patient) for _, label, _, patient in rows] == [
        ("benign", "P1"),
        ("benign", "P2"),
        ("malignant", "P3"),
    ]
    with pytest.raises(DataError, match="table with the columns image, label and patient"):
        read(folder("benign/c.png"))
    for wrong in ("class/visit", "site/patient", "class/class", "site/site/class", "auto/class"):
        with pytest.raises(ConfigurationError, match="layout: expected"):
            read(root, layout=wrong)


@pytest.mark.parametrize(
    ("names", "wrong", "proposed"),
    [
        (["a/x/p/1.png", "b/x/q/2.png"], "class/patient", r"'class/\*/\*' or '\*/\*/class' or .*; others"),
        (["a/1.png", "b/2.png"], "class/patient", r"--layout 'class'; others"),
    ],
)
def test_what_is_proposed_for_a_wrong_layout_is_of_the_folders_and_works(folder, names, wrong, proposed):
    with pytest.raises(DataError, match=rf"is not where an image is expected: {wrong}/image; .*{proposed}") as refused:
        read(folder(*names), layout=wrong)
    layout = re.search("--layout '(.*?)'", str(refused.value))[1]
    assert [label for _, label, *_ in read(folder(*names), layout=layout)[0]] == ["a", "b"]


def test_folders_that_may_be_classes_are_asked_about_or_said(folder):
    root = folder("Covid/images/a.png", "Normal/images/b.png", "Covid/masks/a.png", "Normal/masks/b.png")
    assert [label for _, label, *_ in read(root)[0]] == ["Covid", "Normal"]


def test_it_is_said_that_first_folders_are_taken_for_sites(folder):
    root = folder("benign/dry/a.png", "benign/wet/b.png", "malignant/dry/a.png", "malignant/wet/b.png")
    assert "sites" in read(root)[1].account.notes[0]
    assert read(root, layout="*/class")[1].account.notes == ()


def test_a_table_beside_the_folders_is_named(folder):
    root = folder("part_1/a.png", "part_2/b.png")
    (root / "metadata.CSV").write_text("image,label\na,nevus\nb,melanoma\n")
    assert "metadata.CSV is not read" in read(root)[1].account.notes[0]


def test_links_out_of_a_folder_are_named_with_what_copies_them(folder, tmp_path):
    folder("store/a.png")
    links = tmp_path / "links" / "nevus"
    links.mkdir(parents=True)
    (links / "a.png").symlink_to(next(tmp_path.rglob("store/a.png")))
    with pytest.raises(DataError, match=r"\(1 symbolic links out of the folder\).*cp -rL .*links NEW"):
        read(links.parent)
    with zipfile.ZipFile(tmp_path / "links.zip", "w") as archive:
        link = zipfile.ZipInfo("nevus/a.png")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "../../store/a.png")
    with pytest.raises(DataError, match=r"\(1 symbolic links out of the folder\); expected [^;]*$"):
        read(tmp_path / "links.zip")


def test_labels_are_replaced_or_left_out(folder):
    rows, _ = read(folder("naevus/a.png", "melanoma/b.png", "unsure/c.png"), label_map=("naevus=nevus", "unsure="))
    assert [label for _, label, *_ in rows] == ["melanoma", "nevus"]


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        (["a.png"], {}, r"a\.png is not where an image is expected: CLASS/image"),
        (["x/a.png", "x/y/b.png", "z/c.png"], {}, r"x/y/b\.png is not where an image is expected"),
        (["x/a.png"], {"patient_pattern": r"P(\d+)"}, r"'x/a\.png': patient_pattern .* finds no patient"),
        (["x/a.png"], {"patient_pattern": "("}, "is no regular expression"),
        (["x/a.png"], {"label_map": ("x",)}, "label_map: expected OLD=NEW, got 'x'"),
        ([".hidden/a.png"], {}, "has no image"),
    ],
)
def test_what_is_in_the_wrong_place_is_named(folder, names, options, message):
    with pytest.raises((DataError, ConfigurationError), match=message):
        read(folder(*names), **options)


def write_dicom(path, patient, frames=1):
    meta = FileMetaDataset()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = CTImageStorage, generate_uid()
    dataset = FileDataset(path, {}, file_meta=meta, preamble=b"\0" * 128)
    dataset.PatientID, dataset.NumberOfFrames, dataset.Rows, dataset.Columns = patient, frames, 4, 4
    path.parent.mkdir(parents=True, exist_ok=True)
    dataset.save_as(path, enforce_file_format=True)


def test_patients_of_dicom_files_are_in_their_headers_and_several_frames_are_left_out(tmp_path):
    root = tmp_path / "ct"
    write_dicom(root / "bleeding" / "1.dcm", "A")
    write_dicom(root / "normal" / "2.dcm", "B")
    assert [patient for *_, patient in read(root)[0]] == ["A", "B"]
    write_dicom(root / "normal" / "3.dcm", "C", 7)
    assert read(root)[1].account.left_out == {"normal/3.dcm": "of several frames"}
    with pytest.raises(DataError, match="has no StudyID"):
        read(root, patient_tag="StudyID")


def test_a_tiff_of_several_pages_is_named(folder):
    root = folder("nevus/a.png")
    pages = [Image.new("L", (4, 4), level) for level in (1, 2, 3)]
    pages[0].save(root / "nevus" / "stack.tif", save_all=True, append_images=pages[1:])
    assert read(root)[1].account.left_out == {"nevus/stack.tif": "of several frames"}
    (root.parent / "t.csv").write_text("image,label\nnevus/a.png,x\nnevus/stack.tif,y\n")
    with pytest.raises(DataError, match=r"stack\.tif.*3 frames"):
        read_image_table(root, ManifestOptions(manifest=root.parent / "t.csv"))


def test_a_table_needs_image_and_label_only_as_csv_and_as_parquet(tmp_path):
    rows = {"image": ["a_1.png", "a_2.png", "b_1.png"], "label": ["x", "y", None], "age": [40, 50, 60]}
    write_pictures(tmp_path, rows["image"])
    pd.DataFrame(rows).to_csv(tmp_path / "all.csv", index=False)
    pd.DataFrame(rows).to_parquet(tmp_path / "all.parquet")
    options = ManifestOptions(manifest=tmp_path / "all.csv", patient_pattern="^([a-z]+)_")
    found = [
        read_image_table(tmp_path, replace(options, manifest=tmp_path / f"all.{suffix}"))
        for suffix in ("csv", "parquet")
    ]
    assert found[0].records == found[1].records
    assert [(one.label, one.patient, one.more) for one in found[0].records] == [
        ("x", "a", (("age", "40"),)), ("y", "a", (("age", "50"),)), ("", "b", (("age", "60"),)),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("image,split\na,train\n", "column 'label' is missing"),
        ("image,label,split\na,x,train\nb,y,\n", "column split is empty in some rows"),
        ("image,label,site\na,x,A\nb,y,\n", "column site is empty in some rows"),
        ("image,label,split\na,x,holdout\n", "line 2, column split: expected one of train, val, test or nothing"),
        (
            "image,label\na,x\na,y\n",
            r"line 3, column image: 'a' is already on line 2 with another label; keep one or, for --task multi, .* a\|b",
        ),
        ("image,label,patient\na,x,p\na,x,q\n", "already on line 2 with another patient; keep one$"),
    ],
)
def test_a_damaged_table_is_named_by_line_and_column(tmp_path, text, message):
    path = tmp_path / "all.csv"
    path.write_text(text)
    write_pictures(tmp_path, "ab")
    with pytest.raises(DataError, match=message):
        read_image_table(tmp_path, ManifestOptions(manifest=path))


def test_a_partition_of_folders_keeps_sites_splits_and_patients(folder, tmp_path):
    names = [f"{site}/{label}/P{n // 2}_{n}.png" for site in ("A", "B") for label in "xy" for n in range(20)]
    root = folder(*names)
    described = make_partition("folder", root, tmp_path / "out", patient_pattern=r"([xy]/P\d+)_")
    assert list(described["sites"]) == ["A", "B"]
    assert described["scheme"] == "given"
    assert "patients" not in described
    for site in ("A", "B"):
        records = read_manifest(tmp_path / "out" / site / "manifest.csv")
        assert {record.image.split("/")[0] for record in records} == {site}
        counts = Counter((record.split, record.label) for record in records)
        assert counts[("train", "x")] == counts[("train", "y")] == 14
        assert counts[("test", "x")] == counts[("test", "y")] == 4
    again = make_partition("folder", root, tmp_path / "iid", scheme="iid", sites=3)
    assert (len(again["sites"]), again["patients"]) == (3, "unknown")


def test_own_splits_are_kept_and_only_a_missing_validation_split_is_drawn(folder, tmp_path):
    names = [*numbered("train/x/{}.png", 20), *numbered("train/y/{}.png", 20)]
    names += [*numbered("test/x/{}.png", 8), *numbered("test/y/{}.png", 8)]
    described = make_partition("folder", folder(*names), tmp_path / "out", sites=2, validation=0.25)
    images = Counter()
    for site in described["sites"]:
        for record in read_manifest(tmp_path / "out" / site / "manifest.csv"):
            assert (record.split == "test") == record.image.startswith("test/")
            images[record.split] += 1
    assert images == {"train": 30, "val": 10, "test": 16}


def test_of_several_tables_that_of_the_training_images_is_named(tmp_path):
    write_pictures(tmp_path / "set", [f"{folder}/{number}.png" for folder in ("train", "test") for number in range(4)])
    for name in ("sample_submission.csv", "test.csv", "train.csv"):
        (tmp_path / "set" / name).write_text("id,target\n1,0\n")
    with pytest.raises(DataError, match=r"may be in train\.csv: grandrounds import \S+/set/train\.csv --root"):
        read_folder(tmp_path / "set", FolderOptions())
    packed = shutil.make_archive(str(tmp_path / "packed"), "zip", tmp_path / "set")
    with pytest.raises(
        DataError, match=rf"may be in train\.csv: grandrounds import {packed}/train\.csv --root {packed} --"
    ):
        read_folder(Path(packed), FolderOptions())
