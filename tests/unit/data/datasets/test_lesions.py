"""Four data sets become one; what two of them share is in both or in one, as asked."""

import re
import zipfile

import pytest
from published_data.lesions import (
    LESION_CLASSES,
    Removed,
    read_derm7pt,
    read_isic2019,
    read_lesions,
    read_pad_ufes_20,
)

from grandrounds.data.manifest import Record
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


ROWS_ISIC2019 = [("ISIC_1", "SCC", "BCN_1"), ("ISIC_2_downsampled", "NV", ""), ("ISIC_3", "MEL", "BCN_1")]
TRUTH = "ISIC_2019_Training_GroundTruth.csv"
METADATA = "ISIC_2019_Training_Metadata.csv"


def record_of_isic2019(image, label, lesion=""):
    return Record(f"ISIC_2019_Training_Input/{image}.jpg", label, lesion=lesion, source="ISIC2019")


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_reads_the_published_layout_isic2019(tmp_path, isic2019):
    assert read_isic2019(isic2019(tmp_path, ROWS_ISIC2019)) == (
        record_of_isic2019("ISIC_1", "scc", "BCN_1"),
        record_of_isic2019("ISIC_2_downsampled", "nv"),
        record_of_isic2019("ISIC_3", "mel", "BCN_1"),
    )


def test_every_column_is_its_class_and_unknown_images_are_left_out(tmp_path, isic2019):
    columns = ["MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC", "UNK"]
    isic2019(tmp_path, [(f"ISIC_{i}", column, "") for i, column in enumerate(columns)])
    assert tuple(found.label for found in read_isic2019(tmp_path)) == LESION_CLASSES


def test_an_archive_unpacked_into_a_folder_of_its_name_is_found(tmp_path, isic2019):
    isic2019(tmp_path, ROWS_ISIC2019[:1])
    inner = tmp_path / "ISIC_2019_Training_Input" / "ISIC_2019_Training_Input"
    inner.mkdir()
    (tmp_path / "ISIC_2019_Training_Input" / "ISIC_1.jpg").rename(inner / "ISIC_1.JPG")
    (found,) = read_isic2019(tmp_path)
    assert found.image == "ISIC_2019_Training_Input/ISIC_2019_Training_Input/ISIC_1.JPG"


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        (TRUTH, ",SCC,", ",SCX,", f"{TRUTH} line 1: column 'SCC' is missing"),
        (TRUTH, "ISIC_1,0.0", "ISIC_1,1.0", f"{TRUTH} line 2: expected 1 in one of the columns MEL, .*UNK, got 2"),
        (TRUTH, "ISIC_1,0.0,0.0", "ISIC_1,0.0,0.3", f"{TRUTH} line 2, column NV: expected 0 or 1, got '0.3'"),
        (TRUTH, "ISIC_3", "ISIC_1", r"image 'ISIC_2019_Training_Input/ISIC_1\.jpg' is listed twice"),
        (METADATA, "ISIC_3", "ISIC_4", f"{TRUTH} line 4, column image: 'ISIC_3' has no row in {METADATA}"),
        (METADATA, "lesion_id", "lesion", f"{METADATA} line 1: column 'lesion_id' is missing"),
    ],
)
def test_mistakes_are_named_isic2019(tmp_path, isic2019, file, old, new, message):
    isic2019(tmp_path, ROWS_ISIC2019)
    edit(tmp_path / file, old, new)
    with pytest.raises(DataError, match=message):
        read_isic2019(tmp_path)


def test_a_missing_image_and_missing_tables_are_named(tmp_path, isic2019):
    isic2019(tmp_path, ROWS_ISIC2019)
    (tmp_path / "ISIC_2019_Training_Input" / "ISIC_3.jpg").unlink()
    with pytest.raises(DataError, match=r"line 4.*'ISIC_3'"):
        read_isic2019(tmp_path)
    for name in (METADATA, TRUTH):
        (tmp_path / name).unlink()
        with pytest.raises(
            DataError, match=rf"no ISIC 2019 in {re.escape(str(tmp_path))}: looked for {name}; name the"
        ):
            read_isic2019(tmp_path)


ROWS_PAD_UFES_20 = [
    ("PAT_1", "881", "NEV", "PAT_1_881_14.png"),
    ("PAT_1", "882", "ACK", "PAT_1_882_15.png"),
    ("PAT_2", "", "SEK", "PAT_2_883_16.png"),
    ("", "884", "SCC", "PAT_3_884_17.png"),
]


def record_of_pad_ufes_20(image, label, patient, lesion):
    return Record(f"images/imgs_part_{image}.png", label, patient=patient, lesion=lesion, source="PAD-UFES-20")


def test_reads_the_published_layout_pad_ufes_20(tmp_path, pad_ufes_20):
    assert read_pad_ufes_20(pad_ufes_20(tmp_path, ROWS_PAD_UFES_20)) == (
        record_of_pad_ufes_20("1/PAT_1_881_14", "nv", "PAD-UFES-20/PAT_1", "PAD-UFES-20/881"),
        record_of_pad_ufes_20("2/PAT_1_882_15", "ak", "PAD-UFES-20/PAT_1", "PAD-UFES-20/882"),
        record_of_pad_ufes_20("3/PAT_2_883_16", "bkl", "PAD-UFES-20/PAT_2", ""),
        record_of_pad_ufes_20("1/PAT_3_884_17", "scc", "", "PAD-UFES-20/884"),
    )


def test_folders_beside_the_table_will_do(tmp_path, pad_ufes_20):
    pad_ufes_20(tmp_path, ROWS_PAD_UFES_20)
    (tmp_path / "images" / "imgs_part_2").rename(tmp_path / "imgs_part_2")
    assert read_pad_ufes_20(tmp_path)[1].image == "imgs_part_2/PAT_1_882_15.png"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (",ACK,", ",AKC,", r"metadata\.csv line 3, column diagnostic: 'AKC' is not one of .* did you mean 'ACK'\?"),
        (",diagnostic,", ",diagnosis,", r"metadata\.csv line 1: column 'diagnostic' is missing"),
        ("PAT_2_883_16", "PAT_2_883_17", r"line 4: image 'PAT_2_883_17' was looked for in .* and not found"),
        ("PAT_1_882_15", "PAT_1_881_14", r"image 'images/imgs_part_1/PAT_1_881_14\.png' is listed twice"),
    ],
)
def test_mistakes_are_named_pad_ufes_20(tmp_path, pad_ufes_20, old, new, message):
    pad_ufes_20(tmp_path, ROWS_PAD_UFES_20)
    table = tmp_path / "metadata.csv"
    table.write_text(table.read_text().replace(old, new))
    with pytest.raises(DataError, match=message):
        read_pad_ufes_20(tmp_path)


ROWS_DERM7PT = [
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
    assert read_derm7pt(derm7pt(tmp_path, ROWS_DERM7PT)) == records()


def test_reads_the_release_folder_below(tmp_path, derm7pt):
    derm7pt(tmp_path / "release_v0", ROWS_DERM7PT)
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
def test_mistakes_are_named_derm7pt(tmp_path, derm7pt, old, new, message):
    derm7pt(tmp_path, ROWS_DERM7PT)
    table = tmp_path / "meta" / "meta.csv"
    table.write_text(table.read_text().replace(old, new))
    with pytest.raises(DataError, match=message):
        read_derm7pt(tmp_path)
