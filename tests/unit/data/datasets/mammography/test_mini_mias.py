"""Mini-MIAS is read from its information file and from the small archive, by patients."""

import json
from collections import Counter

import numpy as np
import pytest
from PIL import Image
from published_data.mammography.mini_mias import (
    SIMULATED_VENDORS,
    Vendor,
    assign_vendors,
    read_mini_mias,
    render_vendors,
    simulated_film,
)
from published_data.mammography.records import Mammogram

from grandrounds.errors import ConfigurationError, DataError

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
    ("row", "message"),
    [
        ("mdb001 G CIRC 535 425 197", "mdb001 has an abnormality and no severity"),
        ("mdb001 X NORM", "line 5: expected number, tissue, abnormality and severity, got 'mdb001 X NORM'"),
    ],
)
def test_unexpected_rows_are_refused(mini_mias, tmp_path, row, message):
    with pytest.raises(DataError, match=message):
        read_mini_mias(mini_mias(tmp_path, [row]))


def test_names_what_is_missing(mini_mias, tmp_path):
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


FINDINGS = ("normal", "normal", "benign", "malignant")
FILMS = tuple(
    Mammogram(f"mdb{2 * patient + side + 1:03d}.pgm", FINDINGS[patient % 4], f"{patient:03d}")
    for patient in range(36)
    for side in range(2)
)
PLAIN = Vendor(gamma=1.0, blur=0.0, noise=0.0)


def test_a_vendor_without_effects_shows_the_film():
    film = np.random.default_rng(0).random((8, 8), np.float32)
    np.testing.assert_array_equal(simulated_film(film, PLAIN, np.random.default_rng(0)), film)


def test_noise_grows_with_the_root_of_the_level_and_leaves_black_alone():
    film = np.repeat(np.float32([[0.0, 0.16, 0.64]]), 20_000, axis=0)
    shown = simulated_film(film, Vendor(1.0, 0.0, 0.02), np.random.default_rng(0))
    assert shown.std(axis=0) == pytest.approx([0, 0.02 * 0.4, 0.02 * 0.8], rel=0.03)


def test_blur_is_a_share_of_the_longer_side():
    edge = np.zeros((50, 100), np.float32)
    edge[:, 50:] = 1
    shown = simulated_film(edge, Vendor(1.0, 0.03, 0.0), np.random.default_rng(0))
    # The derivative of a blurred edge is the point spread: its deviation is 3 pixels.
    spread = np.diff(shown[25])
    centre = (np.arange(99) * spread).sum()
    assert np.sqrt(((np.arange(99) - centre) ** 2 * spread).sum()) == pytest.approx(3, rel=0.05)


def test_patients_stay_whole_and_each_vendor_gets_its_share_of_each_finding():
    dealt = assign_vendors(FILMS, np.random.default_rng(0))
    vendors = {}
    for one in dealt:
        assert vendors.setdefault(one.patient, one.vendor) == one.vendor
    for finding in FINDINGS:
        counts = Counter(one.vendor for one in dealt if one.finding == finding)
        assert set(counts) == set(SIMULATED_VENDORS)
        assert max(counts.values()) - min(counts.values()) <= 2  # one patient, two films
    assert dealt != assign_vendors(FILMS, np.random.default_rng(1))


@pytest.fixture
def films(mini_mias, tmp_path):
    rows = [f"mdb{number:03d} G CIRC {'M' if number % 4 < 2 else 'B'} 5 5 5" for number in range(1, 13)]
    (tmp_path / "mias").mkdir()
    return read_mini_mias(mini_mias(tmp_path / "mias", rows))


def test_pictures_are_sixteen_bits_marked_and_used_again(films, tmp_path):
    shown, folder = render_vendors(*films, tmp_path / "shown", seed=1)
    assert {one.vendor for one in shown} == set(SIMULATED_VENDORS)
    assert json.loads((folder / "simulated_vendors.json").read_text())["simulated"] is True
    with Image.open(folder / shown[0].image) as picture:
        assert picture.mode == "I;16"
        assert np.asarray(picture).max() > 60_000
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.png")}
    assert len(before) == 12
    assert render_vendors(*films, tmp_path / "shown", seed=1) == (shown, folder)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.png")} == before


def test_the_same_seed_gives_the_same_pictures(films, tmp_path):
    first, second = (render_vendors(*films, tmp_path / name, seed=1) for name in ("a", "b"))
    assert first[0] == second[0]
    for one in first[0]:
        assert (first[1] / one.image).read_bytes() == (second[1] / one.image).read_bytes()


def test_refuses_a_folder_with_other_things(films, tmp_path):
    render_vendors(*films, tmp_path / "shown", seed=1)
    with pytest.raises(ConfigurationError, match="holds other files than these simulated vendors"):
        render_vendors(*films, tmp_path / "shown", seed=2)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").touch()
    with pytest.raises(ConfigurationError, match="holds other files"):
        render_vendors(*films, tmp_path / "mine", seed=1)
    assert (tmp_path / "mine" / "notes.txt").exists()
