"""Four data sets become one; what two of them share is in both or in one, as asked."""

import zipfile

import pytest

from grandrounds.data.datasets.skin.lesions import LESION_CLASSES, Removed, read_lesions
from grandrounds.errors import DataError

ISIC2019 = [
    ("ISIC_1", "NV", "HAM_1"),
    ("ISIC_2", "MEL", "BCN_1"),
    ("ISIC_3", "SCC", "BCN_1"),
    ("ISIC_4_downsampled", "DF", "MSK4_1"),
    ("ISIC_5", "AK", ""),
]
HAM10000 = [("HAM_1", "ISIC_1", "nv"), ("HAM_2", "ISIC_4", "akiec"), ("HAM_2", "ISIC_9", "vasc")]


@pytest.fixture
def root(tmp_path, isic2019, ham10000, pad_ufes_20, derm7pt):
    # ISIC_5 and ISIC_9 are one file under two names, ISIC_2 and ISIC_9 are only as long as each other.
    isic2019(tmp_path / "isic2019", ISIC2019, {"ISIC_5": "same", "ISIC_2": "like"})
    ham10000(tmp_path / "ham10000", HAM10000, {"ISIC_9": "same"})
    pad_ufes_20(tmp_path / "pad_ufes_20", [("PAT_1", "1", "BCC", "PAT_1_1_1.png")])
    derm7pt(tmp_path / "derm7pt", [("1", "lentigo", "NEL/Nel026.jpg")])
    return tmp_path


def test_the_paper_takes_every_image_for_itself(root):
    records, removed = read_lesions(root, "paper")
    assert removed == Removed(0, 0)
    assert [record.source for record in records] == [
        *["ISIC2019"] * 5,
        *["HAM10000/vidir_modern"] * 3,
        "PAD-UFES-20",
        "Derm7pt",
    ]
    assert all((root / record.image).is_file() for record in records)
    assert {(record.patient, record.lesion) for record in records} == {("", "")}
    assert [record.label for record in records] == ["nv", "mel", "scc", "df", "ak", "nv", "ak", "vasc", "bcc", "bkl"]
    assert {record.label for record in records} <= set(LESION_CLASSES)


def test_clean_removes_copies_by_name_and_by_content_and_keeps_groups(root):
    records, removed = read_lesions(root, "clean")
    assert removed == Removed(same_name=2, same_content=1)
    kept = [record for record in records if record.source == "ISIC2019"]
    assert [record.image.rpartition("/")[2] for record in kept] == ["ISIC_2.jpg", "ISIC_3.jpg"]
    assert [record.group for record in records] == [
        *["BCN_1"] * 2,
        "HAM_1",
        *["HAM_2"] * 2,
        "PAD-UFES-20/PAT_1",
        "Derm7pt/1",
    ]


def test_a_missing_data_set_is_named_with_its_folder(root):
    (root / "pad_ufes_20").rename(root / "pad")
    expected = (
        r"no PAD-UFES-20 in .*: expected the folders isic2019, ham10000, pad_ufes_20, derm7pt; put it into .*/pad_"
    )
    with pytest.raises(DataError, match=expected):
        read_lesions(root, "paper")


def test_an_archive_of_ham10000_must_be_unpacked(root):
    (root / "ham10000" / "ham10000_manifest.csv").write_text(
        "image,label,patient,lesion,source\nISIC_1.jpg,nv,,HAM_1,x\n"
    )
    with zipfile.ZipFile(root / "ham10000" / "ham10000_200x150.zip", "w") as archive:
        archive.writestr("ISIC_1.jpg", b"")
    with pytest.raises(DataError, match=r"ham10000_200x150\.zip is an archive; unpack it"):
        read_lesions(root, "paper")
