"""PAD-UFES-20 is read from its published table, and what is wrong in it is named."""

import pytest

from grandrounds.data.datasets.skin.lesions import read_pad_ufes_20
from grandrounds.data.manifest import Record
from grandrounds.errors import DataError

ROWS = [
    ("PAT_1", "881", "NEV", "PAT_1_881_14.png"),
    ("PAT_1", "882", "ACK", "PAT_1_882_15.png"),
    ("PAT_2", "", "SEK", "PAT_2_883_16.png"),
    ("", "884", "SCC", "PAT_3_884_17.png"),
]


def record(image, label, patient, lesion):
    return Record(f"images/imgs_part_{image}.png", label, patient=patient, lesion=lesion, source="PAD-UFES-20")


def test_reads_the_published_layout(tmp_path, pad_ufes_20):
    assert read_pad_ufes_20(pad_ufes_20(tmp_path, ROWS)) == (
        record("1/PAT_1_881_14", "nv", "PAD-UFES-20/PAT_1", "PAD-UFES-20/881"),
        record("2/PAT_1_882_15", "ak", "PAD-UFES-20/PAT_1", "PAD-UFES-20/882"),
        record("3/PAT_2_883_16", "bkl", "PAD-UFES-20/PAT_2", ""),
        record("1/PAT_3_884_17", "scc", "", "PAD-UFES-20/884"),
    )


def test_folders_beside_the_table_will_do(tmp_path, pad_ufes_20):
    pad_ufes_20(tmp_path, ROWS)
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
def test_mistakes_are_named(tmp_path, pad_ufes_20, old, new, message):
    pad_ufes_20(tmp_path, ROWS)
    table = tmp_path / "metadata.csv"
    table.write_text(table.read_text().replace(old, new))
    with pytest.raises(DataError, match=message):
        read_pad_ufes_20(tmp_path)


def test_a_folder_without_the_data_set_says_what_was_looked_for(tmp_path):
    with pytest.raises(DataError, match=r"no PAD-UFES-20 in .*: looked for metadata\.csv"):
        read_pad_ufes_20(tmp_path)
