"""The dermoscopic images of Derm7pt are read from its published table, and what is wrong in it is named."""

import pytest

from grandrounds.data.datasets.skin.lesions import read_derm7pt
from grandrounds.data.manifest import Record
from grandrounds.errors import DataError

ROWS = [
    ("1", "melanoma (in situ)", "NEL/Nel026.jpg"),
    ("2", "melanosis", "NEL/Nel028.jpg"),
    ("3", "lentigo", "NFL/NFL018.jpg"),
    ("4", "miscellaneous", "NFL/NFL020.jpg"),
]


def records(prefix=""):
    return (
        Record(f"{prefix}images/NEL/Nel026.jpg", "mel", lesion="Derm7pt/1", source="Derm7pt"),
        Record(f"{prefix}images/NFL/NFL018.jpg", "bkl", lesion="Derm7pt/3", source="Derm7pt"),
    )


def test_reads_the_dermoscopic_images_of_the_eight_classes(tmp_path, derm7pt):
    assert read_derm7pt(derm7pt(tmp_path, ROWS)) == records()


def test_reads_the_release_folder_below(tmp_path, derm7pt):
    derm7pt(tmp_path / "release_v0", ROWS)
    assert read_derm7pt(tmp_path) == records("release_v0/")


def test_all_diagnoses_have_the_published_classes(tmp_path, derm7pt):
    diagnoses = {
        "basal cell carcinoma": "bcc",
        "blue nevus": "nv",
        "clark nevus": "nv",
        "combined nevus": "nv",
        "congenital nevus": "nv",
        "dermal nevus": "nv",
        "recurrent nevus": "nv",
        "reed or spitz nevus": "nv",
        "melanoma": "mel",
        "melanoma (less than 0.76 mm)": "mel",
        "melanoma (0.76 to 1.5 mm)": "mel",
        "melanoma (more than 1.5 mm)": "mel",
        "melanoma metastasis": "mel",
        "dermatofibroma": "df",
        "seborrheic keratosis": "bkl",
        "vascular lesion": "vasc",
    }
    derm7pt(tmp_path, [(str(i), name, f"{i}.jpg") for i, name in enumerate(diagnoses)])
    assert [record.label for record in read_derm7pt(tmp_path)] == list(diagnoses.values())


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("lentigo", "lentigos", r"meta\.csv line 4, column diagnosis: 'lentigos' .*; did you mean 'lentigo'\?"),
        (",derm,", ",dermo,", r"meta\.csv line 1: column 'derm' is missing"),
        ("NFL018", "NFL019", r"line 4, column derm: image 'NFL/NFL019\.jpg' was looked for in .*images and not found"),
        ("NFL/NFL018.jpg", "", r"line 4, column derm: image '' was looked for"),
        ("NFL/NFL018", "NEL/Nel026", r"image 'images/NEL/Nel026\.jpg' is listed twice"),
    ],
)
def test_mistakes_are_named(tmp_path, derm7pt, old, new, message):
    derm7pt(tmp_path, ROWS)
    table = tmp_path / "meta" / "meta.csv"
    table.write_text(table.read_text().replace(old, new))
    with pytest.raises(DataError, match=message):
        read_derm7pt(tmp_path)


def test_a_folder_without_the_data_set_says_what_was_looked_for(tmp_path):
    with pytest.raises(DataError, match=r"no Derm7pt in .*: looked for meta/meta\.csv, release_v0/meta/meta\.csv"):
        read_derm7pt(tmp_path)
