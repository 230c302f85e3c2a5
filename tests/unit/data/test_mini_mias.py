"""Mini-MIAS is read from its information file and from the small archive, by patients."""

from collections import Counter

import pytest

from grandrounds.data.datasets.mammography.mini_mias import read_mini_mias
from grandrounds.data.datasets.mammography.records import Mammogram
from grandrounds.errors import DataError

ROWS = [
    "mdb001 G CIRC B 535 425 197",
    "mdb002 G NORM ",
    "mdb003 F CALC B *NOTE 3*",
    "mdb003 F SPIC M 477 133 30",
    "mdb004 D ASYM M 500 168 26",
]


def test_reads_the_published_layout(mini_mias, tmp_path):
    found, images = read_mini_mias(mini_mias(tmp_path, ROWS))
    assert images == tmp_path
    assert found == (
        Mammogram("mdb001.pgm", "benign", "001", "R", "MLO", "film"),
        Mammogram("mdb002.pgm", "normal", "001", "L", "MLO", "film"),
        Mammogram("mdb003.pgm", "malignant", "002", "R", "MLO", "film"),
        Mammogram("mdb004.pgm", "malignant", "002", "L", "MLO", "film"),
    )


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("mdb001 G CIRC 535 425 197", "mdb001 has an abnormality and no severity"),
        ("mdb001 X NORM", "line 5: expected number, tissue, abnormality and severity, got 'mdb001 X NORM'"),
    ],
)
def test_refuses_rows_that_say_something_else(mini_mias, tmp_path, row, said):
    with pytest.raises(DataError, match=said):
        read_mini_mias(mini_mias(tmp_path, [row]))


def test_names_what_is_missing(mini_mias, tmp_path):
    with pytest.raises(DataError, match=r"no mini-MIAS in .*: looked for Info\.txt, mini_mias_manifest\.csv"):
        read_mini_mias(tmp_path)
    (tmp_path / "Info.txt").write_text("something else\n")
    with pytest.raises(DataError, match="has no row like 'mdb001 G CIRC B"):
        read_mini_mias(tmp_path)
    root = mini_mias(tmp_path, ROWS)
    (root / "mdb002.pgm").unlink()
    with pytest.raises(DataError, match="image 'mdb002' was looked for"):
        read_mini_mias(root)


@pytest.mark.realdata
def test_both_layouts_of_the_real_films_agree(realdata, tmp_path):
    small, images = read_mini_mias(realdata / "mias")
    assert images.name == "mini_mias_512.zip"
    # The published information file lists 330 rows of 322 films.
    (tmp_path / "Info.txt").write_bytes((realdata / "mias" / "Info.txt").read_bytes())
    for film in small:
        (tmp_path / f"{film.image[:6]}.pgm").touch()
    published, _ = read_mini_mias(tmp_path)
    assert [one.finding for one in published] == [one.finding for one in small]
    assert Counter(one.finding for one in published) == {"normal": 207, "benign": 63, "malignant": 52}
    assert len({one.patient for one in published}) == 161
    assert Counter(one.laterality for one in published) == {"L": 161, "R": 161}
