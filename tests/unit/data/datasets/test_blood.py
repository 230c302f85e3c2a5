"""Two collections of blood cells come into one vocabulary, and a data set that is not whole is refused."""

import zipfile
from collections import Counter

import numpy as np
import pytest
from published_data.blood import (
    BLOOD_CELL_CLASSES,
    INT20,
    MATEK19,
    MLL23,
    read_bloodmnist,
    read_matek19,
    read_mll23,
)

from grandrounds.data.datasets.published import PBC_CLASSES, read_pbc
from grandrounds.data.images.readers import open_images
from grandrounds.data.manifest import Record
from grandrounds.errors import DataError

# Images of each folder as published, and what the thirteen classes must have then.
MATEK19_IMAGES = {
    "BAS": 79, "EBO": 78, "EOS": 424, "KSC": 15, "LYA": 11, "LYT": 3937, "MMZ": 15, "MOB": 26, "MON": 1789, "MYB": 42,
    "MYO": 3268, "NGB": 109, "NGS": 8484, "PMB": 18, "PMO": 70,
}  # fmt: skip
MATEK19_CLASSES = [79, 424, 78, 3268, 70, 42, 15, 109, 8484, 1815, 3937, 11, 15]
MLL23_IMAGES = {
    "myeloblast": 8606, "neutrophil_segmented": 7170, "lymphocyte": 5532, "hairy_cell": 3265, "monocyte": 2510,
    "eosinophil": 2448, "normoblast": 2071, "promyelocyte_atypical": 2033, "lymphocyte_large_granular": 1849,
    "plasma_cell": 1658, "smudge_cell": 988, "myelocyte": 747, "promyelocyte": 745, "neutrophil_band": 687,
    "basophil": 616, "metamyelocyte": 483, "lymphocyte_neoplastic": 180, "lymphocyte_reactive": 33,
}  # fmt: skip


def folders(root, images):
    for folder, count in images.items():
        (root / folder).mkdir(parents=True)
        for number in range(count):
            (root / folder / f"{folder}_{number:04}.tiff").touch()
    return root


def classes_of(records):
    counts = Counter(record.label for record in records)
    return [counts[name] for name in BLOOD_CELL_CLASSES]


def test_the_classes_have_their_frozen_order_and_every_map_reaches_all_of_them():
    assert ", ".join(BLOOD_CELL_CLASSES) == (
        "basophil, eosinophil, erythroblast, myeloblast, promyelocyte, myelocyte, metamyelocyte, neutrophil_banded, "
        "neutrophil_segmented, monocyte, lymphocyte_typical, lymphocyte_atypical, smudge_cell"
    )
    for mapped in (MATEK19, MLL23, INT20):
        assert {name for name in mapped.values() if name} == set(BLOOD_CELL_CLASSES)
    assert sorted(map(str, MLL23.values())) == sorted(map(str, INT20.values()))


def test_the_maps_give_the_published_numbers_of_images():
    assert set(MATEK19_IMAGES) == set(MATEK19)
    assert set(MLL23_IMAGES) == set(MLL23)
    counts = Counter()
    for folder, images in MATEK19_IMAGES.items():
        counts[MATEK19[folder]] += images
    assert [counts[name] for name in BLOOD_CELL_CLASSES] == MATEK19_CLASSES
    assert sum(MATEK19_CLASSES) == 18_347
    assert sum(images for folder, images in MLL23_IMAGES.items() if MLL23[folder]) == 32_816
    assert sum(MLL23_IMAGES.values()) == 41_621


def test_matek19_is_read_from_any_folder_above_its_classes(tmp_path):
    folders(tmp_path / "AML-Cytomorphology_LMU" / "AML-Cytomorphology", dict.fromkeys(MATEK19, 2))
    records, left_out = read_matek19(tmp_path)
    assert left_out == {"PMB": 2}
    assert classes_of(records) == [2] * 9 + [4] + [2] * 3
    assert records[0] == Record(
        "AML-Cytomorphology_LMU/AML-Cytomorphology/BAS/BAS_0000.tiff", "basophil", source="Matek-19"
    )
    monoblasts = {record.label for record in records if "/MOB/" in record.image}
    assert monoblasts == {"monocyte"}


@pytest.mark.parametrize(("mapped", "source"), [(MLL23, "MLL23"), (INT20, "INT-20")])
def test_mll23_is_read_under_its_names_and_those_of_int20(tmp_path, mapped, source):
    records, left_out = read_mll23(folders(tmp_path / "a", dict.fromkeys(mapped, 1)))
    assert sum(left_out.values()) == 4
    assert classes_of(records) == [1] * 11 + [2, 1]
    assert {record.source for record in records} == {source}


def test_a_data_set_that_is_not_whole_or_has_more_is_refused(tmp_path):
    root = folders(tmp_path / "a", dict.fromkeys(MATEK19, 1))
    (root / "XYZ").mkdir()
    (root / "XYZ" / "1.tiff").touch()
    with pytest.raises(DataError, match=r"image 'XYZ/1\.tiff' is in a folder"):
        read_matek19(root)
    (root / "XYZ" / "1.tiff").unlink()
    (root / "PMB" / "PMB_0000.tiff").unlink()
    with pytest.raises(DataError, match=r"no whole Matek-19 in .*: folder PMB is missing or empty"):
        read_matek19(root)
    with pytest.raises(DataError, match=r"no whole MLL23 in .*: folder basophil is missing or empty"):
        read_mll23(root)
    with pytest.raises(DataError, match=r"no MLL23 in .*: expected a folder"):
        read_mll23(tmp_path / "nowhere")


TABLE = "image,label,patient,source,subtype\nig/MY_1.jpg,ig,,PBC,MY\nplatelet/P_1.jpg,platelet,,PBC,PLATELET\n"


def archive(root, table=TABLE, images=("ig/MY_1.jpg", "platelet/P_1.jpg")):
    (root / "pbc_barcelona_manifest.csv").write_text(table)
    with zipfile.ZipFile(root / "pbc_barcelona_96.zip", "w") as opened:
        for image in images:
            opened.writestr(image, b"")
    return root


def test_the_published_folders_are_the_classes(tmp_path):
    for name in PBC_CLASSES:
        (tmp_path / "PBC_dataset_normal_DIB" / name).mkdir(parents=True)
        (tmp_path / "PBC_dataset_normal_DIB" / name / "A_1.jpg").touch()
    (tmp_path / "PBC_dataset_normal_DIB" / "ig" / ".hidden.jpg").touch()
    records, root = read_pbc(tmp_path)
    assert root == tmp_path
    assert [record.label for record in records] == list(PBC_CLASSES)
    assert records[3] == Record("PBC_dataset_normal_DIB/ig/A_1.jpg", "ig", source="PBC-Barcelona")


def test_the_table_beside_an_archive_is_read(tmp_path):
    records, root = read_pbc(archive(tmp_path))
    assert records == (Record("ig/MY_1.jpg", "ig", source="PBC"), Record("platelet/P_1.jpg", "platelet", source="PBC"))
    assert root.name == "pbc_barcelona_96.zip"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"images": ("ig/MY_1.jpg",)}, r"line 3: image 'platelet/P_1\.jpg' was looked for in .*96\.zip and not found"),
        (
            {"table": TABLE.replace(",platelet,", ",platelets,")},
            r"line 3, column label: 'platelets' .* mean 'platelet'\?",
        ),
        ({"table": TABLE + "ig/MY_1.jpg,ig,,PBC,MY\n"}, r"image 'ig/MY_1\.jpg' is listed twice"),
    ],
)
def test_mistakes_in_the_table_are_named(tmp_path, arguments, message):
    with pytest.raises(DataError, match=message):
        read_pbc(archive(tmp_path, **arguments))


def bloodmnist(path, **changed):
    generator = np.random.default_rng(0)
    arrays = {}
    for part, count in (("train", 5), ("val", 2), ("test", 3)):
        arrays[f"{part}_images"] = generator.integers(0, 256, (count, 28, 28, 3), dtype=np.uint8)
        arrays[f"{part}_labels"] = np.arange(count, dtype=np.uint8)[:, None] + 3
    arrays |= changed
    np.savez(path, **{name: content for name, content in arrays.items() if content is not None})
    return arrays


@pytest.mark.parametrize("name", ["bloodmnist.npz", "bloodmnist_64.npz"])
def test_bloodmnist_has_its_three_parts_and_the_same_classes(tmp_path, name):
    arrays = bloodmnist(tmp_path / name)
    for root in (tmp_path, tmp_path / name):
        records, path = read_bloodmnist(root)
    assert path == tmp_path / name
    assert [record.label for record in records] == [PBC_CLASSES[i] for i in (3, 4, 5, 6, 7, 3, 4, 3, 4, 5)]
    assert records[5].image == "val_images/0"
    with open_images(path) as reader:
        assert np.array_equal(reader.read(records[9].image), arrays["test_images"][2])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"val_labels": None}, "val_labels.*; expected train_labels, val_labels, test_labels"),
        ({"val_labels": np.array([[8], [0]])}, "val_labels: labels must be from 0 to 7, got 0 to 8"),
        ({"val_labels": np.array([[1]])}, "has 10 images and 9 labels"),
    ],
)
def test_a_file_that_is_not_bloodmnist_is_refused(tmp_path, changed, message):
    bloodmnist(tmp_path / "bloodmnist.npz", **changed)
    with pytest.raises(DataError, match=message):
        read_bloodmnist(tmp_path)
    (tmp_path / "bloodmnist.npz").write_bytes(b"no archive")
    with pytest.raises(DataError, match="cannot be opened"):
        read_bloodmnist(tmp_path)
    with pytest.raises(DataError, match=r"bloodmnist\.npz, bloodmnist_64\.npz"):
        read_bloodmnist(tmp_path / "nowhere")


@pytest.mark.realdata
def test_the_real_cells_have_their_counts(realdata):
    records, root = read_pbc(realdata / "pbc")
    counts = Counter(record.label for record in records)
    assert [counts[name] for name in PBC_CLASSES] == [424, 1089, 543, 1012, 425, 497, 1165, 822]
    with open_images(root) as reader:
        assert reader.read(records[0].image).shape == (96, 96, 3)
