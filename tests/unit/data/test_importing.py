"""Every file of a folder or archive, and every row of a table, is used or left out for a reason."""

import io
import os
import re
import stat
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import grandrounds as gr
from grandrounds.data import image_files, importing
from grandrounds.data.image_files import look_at, place_at
from grandrounds.data.images.readers import open_images
from grandrounds.data.importing import Import, _differ, account, look_up
from grandrounds.errors import DataError
from tests.federations import write_pictures


def encoded(kind, frames=1, size=(6, 4), **options):
    pictures = [Image.new("RGB", size, (level, 9, 200)) for level in range(0, 60 * frames, 60)]
    out = io.BytesIO()
    more = {"save_all": True, "append_images": pictures[1:]} if frames > 1 else {}
    pictures[0].save(out, kind, **more, **options)
    return out.getvalue()


def put(root, files):
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root


def packed(folder, root):
    with zipfile.ZipFile(root, "w") as archive:
        for path in sorted(folder.rglob("*")):
            archive.write(path, path.relative_to(folder))
    return root


FILES = {
    "x/a.JPG": encoded("JPEG"), "x/b": encoded("PNG"), "x/c.webp": encoded("WEBP"), "y/d.gif": encoded("GIF"),
    "y/e.jfif": encoded("JPEG"), "y/f.jp2": encoded("JPEG2000"), "y/g.png": encoded("BMP"),
}  # fmt: skip
ODD = {
    "x/film.tif": (encoded("TIFF", 3), "of several frames"), "x/film.gif": (encoded("GIF", 2), "of several frames"),
    "x/cut.jpg": (encoded("JPEG", size=(90, 90), quality=100)[:-900], "unreadable"), "x/empty.png": (b"", "unreadable"),
    "x/text.jpg": (b"no image", "unreadable"), "x/phone.HEIC": (b"ftypheic", "unreadable"),
    "notes.txt": (b"x", "no images"), "all.csv": (b"image\n", "no images"),
    "x/a_mask.png": (encoded("PNG"), "masks"), "masks/e.png": (encoded("PNG"), "masks"),
    "x/.hidden.jpg": (FILES["x/a.JPG"], "hidden or system files"), "__MACOSX/x/._a.jpg": (b"x", "hidden or system files"),
    "Thumbs.db": (b"x", "hidden or system files"), "y/DICOMDIR": (b"x", "hidden or system files"),
}  # fmt: skip


@pytest.mark.parametrize("archive", [False, True])
def test_images_are_known_by_their_bytes_and_all_others_have_a_reason(tmp_path, archive):
    root = put(tmp_path / "in", FILES | {name: content for name, (content, _) in ODD.items()})
    place = place_at(packed(root, tmp_path / "in.zip") if archive else root)
    used, left = look_at(place)
    assert {name: (one.width, one.height) for name, one in used.items()} == dict.fromkeys(FILES, (6, 4))
    assert left == {name: reason for name, (_, reason) in ODD.items()}


def test_the_first_names_of_what_a_person_should_look_at_are_kept(tmp_path):
    root = put(tmp_path, {name: content for name, (content, _) in ODD.items()})
    named = Import("files", {}, look_at(place_at(root))[1]).facts()["import"]["named"]
    assert sorted(named) == [
        "of several frames: x/film.gif, x/film.tif",
        "unreadable: x/cut.jpg, x/empty.png, x/phone.HEIC ...",
    ]


@pytest.mark.parametrize("mask", [(0, 255), (0, 128, 255)])
def test_a_picture_of_few_levels_beside_another_of_its_name_is_its_mask(tmp_path, mask):
    levels = np.arange(64, dtype=np.uint8).reshape(8, 8)
    for name, pixels in (
        ("a.png", levels * 3),
        ("a.bmp", np.array(mask, np.uint8)[levels % len(mask)]),
        ("b.png", levels),
    ):
        Image.fromarray(pixels).save(tmp_path / name)
    assert look_at(place_at(tmp_path))[1] == {"a.bmp": "masks"}
    listed = look_up("t.csv", tmp_path, [(2, "a"), (3, "b")], skip=False)
    assert listed.files == {2: "a.png", 3: "b.png"}
    assert listed.account.notes[-1] == "1 images beside others of their name are masks, first a.bmp"


def test_a_class_may_be_called_mask_and_words_for_masks_need_an_image_beside_them(tmp_path):
    names = {"mask/1.png", "no mask/1.png", "x/gt_7.png", "x/contour 3.png", "x/label_5.png", "y/label_5.png"}
    used, left = look_at(place_at(put(tmp_path, dict.fromkeys(names, encoded("PNG")))))
    assert (set(used), left) == (names, {})


def test_links_out_of_the_folder_and_pipes_are_never_opened(tmp_path):
    put(tmp_path / "other", {"secret.png": encoded("PNG")})
    root = put(tmp_path / "in", {"x/a.png": encoded("PNG")})
    (root / "x" / "b.png").symlink_to(tmp_path / "other" / "secret.png")
    (root / "y").symlink_to(tmp_path / "other")
    (root / "x" / "c.png").symlink_to(root / "x" / "a.png")
    (root / "x" / "loop.png").symlink_to(root / "x" / "loop.png")
    os.mkfifo(root / "x" / "pipe.png")
    used, left = look_at(place_at(root))
    assert set(used) == {"x/a.png", "x/c.png"}
    assert left["x/b.png"] == left["y"] == "symbolic links out of the folder"
    assert set(left) == {"x/b.png", "y", "x/loop.png", "x/pipe.png"}


def test_names_that_are_no_text_are_refused_and_shown(tmp_path):
    (tmp_path / os.fsdecode(b"M\xfcller.png")).write_bytes(encoded("PNG"))
    with pytest.raises(DataError, match=r"M\\xfcller\.png.*convmv"):
        look_at(place_at(tmp_path))


@pytest.mark.parametrize("name", ["../a.png", "/a.png", "C:/a.png", "x\\..\\..\\a.png"])
def test_names_that_lead_out_of_an_archive_are_refused(tmp_path, name):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(name, encoded("PNG"))
    with pytest.raises(DataError, match="leads out of it"):
        place_at(tmp_path / "a.zip")


def test_archives_have_bounds(tmp_path, monkeypatch):
    bomb = tmp_path / "bomb.zip"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(4):
            archive.writestr(f"x/{number}.png", bytes(1_000_000))
    monkeypatch.setattr(image_files, "MAX_MEMBER_BYTES", 2_000_000)
    with pytest.raises(DataError, match="over the limit of 200 times"):
        place_at(bomb)
    monkeypatch.setattr(image_files, "MAX_EXPANSION", 5000)
    monkeypatch.setattr(image_files, "MAX_MEMBER_BYTES", 900_000)
    with pytest.raises(DataError, match=r"x/0\.png has"):
        place_at(bomb)
    monkeypatch.setattr(image_files, "MAX_MEMBERS", 3)
    with pytest.raises(DataError, match="4 files, over the limit of 3"):
        place_at(bomb)


def test_a_link_in_an_archive_is_left_out(tmp_path):
    link = zipfile.ZipInfo("x/b.png")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("x/a.png", encoded("PNG"))
        archive.writestr(link, "/etc/passwd")
    assert look_at(place_at(tmp_path / "a.zip"))[1] == {"x/b.png": "symbolic links out of the folder"}


@pytest.mark.parametrize("name", ["t.xlsx", "a.npz", "a.bin"])
def test_only_a_file_that_is_called_zip_is_refused_as_a_damaged_one(tmp_path, name):
    (tmp_path / name).write_bytes(b"PK\3\4 damaged")
    assert place_at(tmp_path / name) is None


@pytest.mark.parametrize("name", ["cut.zip", "cut.ZIP"])
def test_a_zip_archive_without_its_end_is_told(tmp_path, name):
    put(tmp_path / "in", {"x/a.png": encoded("PNG")})
    packed(tmp_path / "in", tmp_path / "in.zip")
    (tmp_path / name).write_bytes((tmp_path / "in.zip").read_bytes()[:-40])
    expected = rf"{re.escape(name)} is no \.zip that can be read, or one without its end; copy or download it again"
    with pytest.raises(DataError, match=expected):
        place_at(tmp_path / name)


@pytest.mark.parametrize("name", ["x/inner.zip", "a.tar.GZ", "y/part1.rar"])
def test_archives_in_a_folder_without_images_are_named(tmp_path, name):
    put(tmp_path / "in", {name: b"PK", "readme.txt": b"x"})
    with pytest.raises(
        DataError, match=rf"has no image that can be used .*; unpack {name}, which may hold them, first"
    ):
        gr.Sites.from_folders(tmp_path / "in", out=tmp_path / "out")


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz", "a.7z"])
def test_other_archives_are_refused_with_what_to_type(tmp_path, name):
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(DataError, match=f"tar -xf .*{name}"):
        place_at(tmp_path / name)


@pytest.mark.parametrize("archive", [False, True])
@pytest.mark.parametrize(
    "written",
    [
        "sub/Bäume/I1.JPG", "./sub/Bäume/I1.JPG", "sub\\Bäume\\I1.JPG", "SUB/bäume/i1.jpg", "C:\\Daten\\sub\\Bäume\\I1.JPG",
        "\\\\server\\share\\sub\\Bäume\\I1.JPG", "/other/machine/sub/Bäume/I1.JPG", "Bäume/I1.JPG", "I1.JPG", "I1",
        "sub/Ba\u0308ume/I1.JPG",
    ],
)  # fmt: skip
def test_a_table_may_write_a_path_as_another_machine_does(tmp_path, written, archive):
    root = put(tmp_path / "in", {"sub/Bäume/I1.JPG": encoded("JPEG"), "sub/Bäume/I10.JPG": encoded("JPEG")})
    root = packed(root, tmp_path / "in.zip") if archive else root
    assert look_up("t.csv", root, [(2, written)], skip=False).files == {2: "sub/Bäume/I1.JPG"}


def test_a_name_without_suffix_is_the_image_among_files_of_that_name(tmp_path):
    root = put(tmp_path, {"a.json": b"{}", "a.png": encoded("PNG"), "a.txt": b"0 0.5 0.5"})
    assert look_up("t.csv", root, [(2, "a")], skip=False).files == {2: "a.png"}


@pytest.mark.parametrize("written", ["7", "7.0", "7.bmp", "cells/7", "cells/7.bmp", "cells/007", "/other/cells/7"])
def test_a_number_may_have_lost_the_zeros_before_it(tmp_path, written):
    root = put(
        tmp_path, {"cells/007.bmp": encoded("BMP"), "cells/070.bmp": encoded("BMP"), "cells/17.bmp": encoded("BMP")}
    )
    assert look_up("t.csv", root, [(2, written)], skip=False).files == {2: "cells/007.bmp"}


def test_a_name_in_two_folders_is_asked_about_by_their_names(tmp_path):
    put(tmp_path / "in", {"crops/1.png": encoded("PNG"), "whole/1.png": encoded("PNG")})
    with pytest.raises(DataError, match=r"name the folder by --root '\S+/in/crops' or --root '\S+/in/whole', or write"):
        look_up("t.csv", tmp_path / "in", [(2, "1")], skip=False)


def test_an_address_is_a_name_and_no_root_is_proposed_that_is_the_root(tmp_path):
    root = put(tmp_path / "in", {"a/1.png": encoded("PNG"), "a/2.png": encoded("PNG")})
    assert look_up("t.csv", root, [(2, "https://site.org/a/1.png")], skip=False).files == {2: "a/1.png"}
    with pytest.raises(DataError) as refused:
        look_up("t.csv", root, [(2, "other/2.png")], skip=False)
    assert f"--root '{root}'" not in str(refused.value)


def test_a_number_with_zeros_is_no_other_number(tmp_path):
    names = ["07.png", "007.png", "8.png", "08.png", "x/009.png", "9.png"]
    root = put(tmp_path, dict.fromkeys(names, encoded("PNG")))
    found = look_up("t.csv", root, [(2, "8"), (3, "07"), (4, "/data/x/9.png")], skip=False).files
    assert found == {2: "8.png", 3: "07.png", 4: "9.png"}
    with pytest.raises(DataError, match=r"line 2, column image: 7 may be 007\.png or 07\.png; write one"):
        look_up("t.csv", root, [(2, "7")], skip=False)
    with pytest.raises(DataError, match=r"0008\.png, missing"):
        look_up("t.csv", root, [(2, "0008.png")], skip=False)


@pytest.mark.parametrize("mode", ["16 bits", "float"])
def test_a_picture_of_more_than_eight_bits_is_no_mask_of_its_preview(tmp_path, mode):
    levels = np.arange(64, dtype=np.uint16).reshape(8, 8)
    Image.fromarray(levels * 600 + 20000 if mode == "16 bits" else levels.astype(np.float32) / 64).save(
        tmp_path / "a.tif"
    )
    Image.fromarray(levels.astype(np.uint8)).save(tmp_path / "a.png")
    assert set(look_at(place_at(tmp_path))[0]) == {"a.png", "a.tif"}
    with pytest.raises(DataError, match=r"may be a\.png or a\.tif"):
        look_up("t.csv", tmp_path, [(2, "a")], skip=False)


@pytest.mark.parametrize("archive", [False, True])
def test_many_images_of_one_name_are_found_without_comparing_each_with_all(tmp_path, archive, monkeypatch):
    folders = [f"P{number}" for number in range(200)]
    put(tmp_path / "in", dict.fromkeys([f"{own}/image.png" for own in folders], encoded("PNG")))
    folded = []
    monkeypatch.setattr(
        importing, "_folded_parts", lambda name, own=importing._folded_parts: folded.append(1) or own(name)
    )
    root = packed(tmp_path / "in", tmp_path / "in.zip") if archive else tmp_path / "in"
    rows = [(line, f"D:\\data\\{own}\\image.png") for line, own in enumerate(folders)]
    assert look_up("t.csv", root, rows, skip=False).files == {n: f"{own}/image.png" for n, own in enumerate(folders)}
    assert len(folded) < 5 * len(folders)


@pytest.mark.parametrize("said", [False, True])
def test_names_in_an_archive_are_text_whether_it_says_its_encoding_or_not(tmp_path, said):
    """Info-ZIP writes UTF-8 without the flag for it: here the flag is taken out of both headers of the member."""
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("Nävus/ä.png", encoded("PNG"))
    if not said:
        data = (tmp_path / "a.zip").read_bytes()
        data = data[:6] + bytes([data[6], data[7] & ~8]) + data[8:]
        directory = data.index(b"PK\x01\x02")
        (tmp_path / "a.zip").write_bytes(
            data[: directory + 9] + bytes([data[directory + 9] & ~8]) + data[directory + 10 :]
        )
    used, left = look_at(place_at(tmp_path / "a.zip"))
    assert (list(used), left) == (["Nävus/ä.png"], {})
    with open_images(tmp_path / "a.zip") as reader:
        assert reader.read("Nävus/ä.png").shape == (4, 6, 3)


@pytest.mark.parametrize(
    ("packed", "names"), [(["a\\1.png", "b\\2.png"], ["a/1.png", "b/2.png"]), (["a/1\\2.png"], ["a/1\\2.png"])]
)
def test_an_archive_that_windows_has_packed_with_its_separators_has_folders(tmp_path, packed, names):
    """Where slashes separate, a backslash is part of a name."""
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for name in packed:
            archive.writestr(zipfile.ZipInfo(name), encoded("PNG"))
    used, left = look_at(place_at(tmp_path / "a.zip"))
    assert (list(used), left) == (names, {})
    with open_images(tmp_path / "a.zip") as reader:
        assert all(reader.read(name).shape == (4, 6, 3) for name in names)


def test_an_absolute_path_of_this_machine_is_below_the_root(tmp_path):
    write_pictures(tmp_path, ["a/1.png", "b/1.png"])
    assert look_up("t.csv", tmp_path, [(2, str(tmp_path / "b/1.png"))], skip=False).files == {2: "b/1.png"}


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("gone.png", r"1 missing; first line 3: gone\.png"),
        ("1.png", "a/1.png or b/1.png"),
        ("../secret.png", "leads out of"),
        ("film.gif", "2 frames"),
        ("text.png", "1 unreadable"),
    ],
)
def test_an_image_that_cannot_be_used_is_refused_with_its_line_or_skipped(tmp_path, written, message):
    root = tmp_path / "in"
    put(root, {"film.gif": encoded("GIF", 2), "text.png": b"x", "z.png": encoded("PNG")})
    write_pictures(root, ["a/1.png", "b/1.png"])
    rows = [(2, "z.png"), (3, written)]
    with pytest.raises(DataError, match=message):
        look_up("t.csv", root, rows, skip=False)
    if written in ("gone.png", "film.gif", "text.png"):
        listed = look_up("t.csv", root, rows, skip=True)
        assert (listed.files, listed.account.found, len(listed.account.left_out)) == ({2: "z.png"}, 2, 1)


def test_the_folder_of_the_images_is_proposed(tmp_path):
    write_pictures(tmp_path / "pictures", ["sub/a.png"])
    (tmp_path / "table").mkdir()
    with pytest.raises(DataError, match=f"--root '{tmp_path / 'pictures'}'"):
        look_up("t.csv", tmp_path / "table", [(2, "sub/a.png")], skip=False)


@pytest.mark.parametrize("archive", [False, True])
@pytest.mark.parametrize(
    ("file", "written", "found"),
    [
        ("Jena/1.png", "D:\\Fotos\\Koeln\\1.png", False),
        ("Jena/1.png", "Koeln/1.png", False),
        ("Jena/2020/1.png", "/data/Koeln/2020/1.png", False),
        ("Jena/1.png", "D:\\Fotos\\Jena\\1.png", True),
        ("train/p1/1.png", "CheXpert-v1.0-small/train/p1/1.png", True),
        ("p1/1.png", "CBIS/jpeg/p1/1.png", True),
        ("1.png", "D:\\Fotos\\Koeln\\1.png", False),
        ("1.png", "D:\\Bilder\\1.png", True),
        ("1.png", "D:\\in 2024\\1.png", True),
        ("1.png", "images (1)/1.png", True),
        ("Jena/1.png", "1.png", True),
    ],
)
def test_a_name_and_a_file_agree_in_all_parts_that_both_have(tmp_path, archive, file, written, found):
    root = put(tmp_path / "in", {file: encoded("PNG"), "other.png": encoded("PNG")})
    root = packed(root, tmp_path / "in.zip") if archive else root
    if found:
        listed = look_up("t.csv", root, [(2, written)], skip=False)
        assert listed.files == {2: file}
        assert any(f"{written} -> {file}" in note for note in listed.account.notes)
        return
    with pytest.raises(
        DataError, match=rf"1 in another folder; .*{re.escape(written)} -> {root.name}/{file}; .*--merge image"
    ):
        look_up("t.csv", root, [(2, written)], skip=False)
    skipped = look_up("t.csv", root, [(2, written), (3, "other.png")], skip=True)
    assert (skipped.files, skipped.account.reasons) == ({3: "other.png"}, {"in another folder": 1})
    assert look_up("t.csv", root, [(2, written)], skip=False, any_folder=True).files == {2: file}


@pytest.mark.parametrize(
    ("folder", "other", "differ"),
    [
        ("batch_1", "batch_2", True),
        ("site a", "site b", True),
        ("batch_1", "batch", False),
        ("images (1)", "ham10000", False),
        ("d", "e", False),
        ("jena", "jena 2020", False),
    ],
)
def test_folders_differ_in_numbers_and_letters_beside_words(folder, other, differ):
    assert _differ(folder, other) == differ


def test_one_file_is_not_the_image_of_two_folders(tmp_path):
    root = put(tmp_path / "in", {"1.png": encoded("PNG"), "2.png": encoded("PNG")})
    rows = [(2, "Jena/1.png"), (3, "Koeln\\1.png"), (4, "Koeln/2.png"), (5, "Jena/1.png")]
    with pytest.raises(DataError, match=r"1 one file for names in several folders; first line 3: Koeln\\1\.png"):
        look_up("t.csv", root, rows, skip=False, any_folder=True)
    assert look_up("t.csv", root, rows, skip=True, any_folder=True).files == {2: "1.png", 4: "2.png", 5: "1.png"}


def test_a_root_is_proposed_only_if_the_images_are_found_below_it(tmp_path):
    put(tmp_path / "a/b", {"x/1.png": encoded("PNG"), "x/2.png": encoded("PNG")})
    (tmp_path / "table").mkdir()
    rows = [(2, "x/1.png"), (3, "x/2.png"), (4, "x/3.png")]
    with pytest.raises(DataError, match=rf"--root '{tmp_path}/a/b' --skip-unusable for 2 of 3"):
        look_up("t.csv", tmp_path / "table", rows, skip=False)
    with pytest.raises(DataError, match="name the folder of the images by --root") as refused:
        look_up("t.csv", tmp_path / "table", [(2, "gone.png")], skip=False)
    assert "--root '" not in str(refused.value)


def test_a_row_without_a_name_is_left_out_where_that_is_asked_for(tmp_path):
    root = put(tmp_path, {"1.png": encoded("PNG")})
    listed = look_up("t.csv", root, [(2, "1.png"), (3, "")], skip=True)
    assert listed.account.reasons == {"without an image's name": 1}


KINDS = st.sampled_from([*FILES.values(), *(content for content, _ in ODD.values())])
STEMS = st.sampled_from(["a", "b", "a_mask", "b_seg", "mask_a", ".a", "Thumbs", "ä", "a b"])
SUFFIXES = st.sampled_from([".png", ".JPG", "", ".tif", ".txt", ".db", ".dcm"])
FOLDERS = st.sampled_from(["", "x/", "y/", "masks/", "__MACOSX/", "x/y/", "segmentations/x/"])
NAMES = st.builds(lambda folder, stem, suffix: f"{folder}{stem}{suffix}", FOLDERS, STEMS, SUFFIXES)


@settings(max_examples=60)
@given(st.dictionaries(NAMES, KINDS, max_size=12))
def test_the_account_adds_up_for_any_folder(files):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        files = {
            name: content for name, content in files.items() if not any(other.startswith(f"{name}/") for other in files)
        }
        put(root, files)
        imported = Import("files", *look_at(place_at(root)))
        facts = imported.facts()["import"]
        assert imported.found == len(files) == facts["found"] == facts["used"] + sum(facts["left_out"].values())
        assert {*imported.used, *imported.left_out} == set(files)
        assert account(facts).startswith(f"{len(files)} files found = {len(imported.used)} used + ")
        with zipfile.ZipFile(root / "all.zip", "w") as archive:
            for name, content in files.items():
                archive.writestr(name, content)
        assert Import("files", *look_at(place_at(root / "all.zip"))).facts() == imported.facts()


def test_a_folder_its_archive_a_table_and_a_frame_give_the_same_sites(tmp_path):
    root = tmp_path / "in"
    write_pictures(root, [f"{'ab'[number % 2]}/{number}.png" for number in range(60)])
    names = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.png"))
    frame = pd.DataFrame({"Image": names, "label": [name[0] for name in names]})
    frame.to_csv(tmp_path / "t.csv", index=False, sep=";", encoding="utf-16")
    made = [
        gr.Sites.from_source(root, out=tmp_path / "1", warn=False),
        gr.Sites.from_folders(packed(root, tmp_path / "in.zip"), tmp_path / "2", warn=False),
        gr.Sites.from_source(tmp_path / "t.csv", root, tmp_path / "3", warn=False),
        gr.Sites.from_dataframe(frame, root, tmp_path / "4", warn=False),
    ]
    first = made[0].description["sites"]
    assert sum(one["labelled"] for one in first.values()) == sum(one["images"]["train"] for one in first.values())
    assert all(sites.description["sites"] == first for sites in made)
    with pytest.raises(DataError, match=r"line 1.*'label'"):
        gr.Sites.from_dataframe(frame.rename(columns={"label": "x"}), root, tmp_path / "5")
