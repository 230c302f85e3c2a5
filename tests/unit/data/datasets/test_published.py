"""Images are found wherever an archive was unpacked, and of two copies always the same one."""

from pathlib import Path

import pytest
from published_data.reading import images_by_folder

from grandrounds.data.datasets.published import find_table, image_called, images_by_name, read_records
from grandrounds.data.manifest import Record
from grandrounds.errors import DataError


def test_of_copies_the_nearest_and_then_the_first_in_alphabetical_order_counts(tmp_path):
    for path in ("z.jpg", "a/z.jpg", "b/y.jpg", "a/a/y.jpg", "a/x.jpg", "b/x.jpg", "a/w.png"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    assert images_by_name(tmp_path, ".jpg") == {"z": "z.jpg", "y": "b/y.jpg", "x": "a/x.jpg"}


def test_images_of_a_folder_are_found_at_any_depth_and_those_of_others_are_left_out(tmp_path):
    for path in ("x/D1/2.DCM", "x/D1/s/1.dcm", "D1/0.txt", "D2/a.dcm", "D3/b.dcm", "c.dcm"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    found = images_by_folder(tmp_path, {"D2", "D1", "D9"}, ".dcm")
    assert list(found.items()) == [("D1", ["x/D1/2.DCM", "x/D1/s/1.dcm"]), ("D2", ["D2/a.dcm"]), ("D9", [])]


def test_folders_that_are_links_are_searched(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "a.jpg").touch()
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "images").symlink_to(tmp_path / "elsewhere")
    assert images_by_name(tmp_path / "root", ".jpg") == {"a": "images/a.jpg"}


def test_the_first_table_that_is_there_is_taken(tmp_path):
    (tmp_path / "old.csv").touch()
    assert find_table(tmp_path, ("new.csv", "old.csv"), "Moles") == tmp_path / "old.csv"
    with pytest.raises(DataError, match=r"no Moles in .*: looked for new\.csv"):
        find_table(tmp_path, ("new.csv", "newer.csv"), "Moles")


def test_images_that_are_missing_or_listed_twice_are_named(tmp_path):
    assert image_called("a", {"a": "b/a.jpg"}, "t.csv line 2", Path("here")) == "b/a.jpg"
    with pytest.raises(DataError, match=r"t\.csv line 2: image 'c' was looked for in here and not found; complete"):
        image_called("c", {"a": "b/a.jpg"}, "t.csv line 2", Path("here"))
    (tmp_path / "t.csv").write_text("image\na\nb\nc\na\n")
    with pytest.raises(DataError, match=r"t\.csv: image 'a' is listed twice; remove one row"):
        read_records(tmp_path / "t.csv", ["image"], lambda row, _: Record(row["image"]))
    (tmp_path / "t.csv").write_text("image\na\nb\n")
    kept = read_records(tmp_path / "t.csv", ["image"], lambda row, _: Record("a") if row["image"] == "a" else None)
    assert kept == (Record("a"),)
