"""Two collections of blood cells come into one vocabulary, and a data set that is not whole is refused."""

from collections import Counter

import pytest

from grandrounds.data.datasets.blood import BLOOD_CELL_CLASSES, INT20, MATEK19, MLL23, read_matek19, read_mll23
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
    with pytest.raises(
        DataError, match=r"image 'XYZ/1\.tiff' is in a folder that is no class of Matek-19; expected BAS"
    ):
        read_matek19(root)
    (root / "XYZ" / "1.tiff").unlink()
    (root / "PMB" / "PMB_0000.tiff").unlink()
    with pytest.raises(DataError, match=r"no whole Matek-19 in .*: folder PMB is missing or empty"):
        read_matek19(root)
    with pytest.raises(DataError, match=r"no whole MLL23 in .*: folder basophil is missing or empty"):
        read_mll23(root)
    with pytest.raises(DataError, match=r"no MLL23 in .*: expected a folder"):
        read_mll23(tmp_path / "nowhere")
