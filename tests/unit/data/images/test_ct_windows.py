"""Hounsfield units become the channels that the windows say; everything else is shown as it was before."""

import io
import json
import os
import zipfile
from pathlib import Path

import numpy as np
import pydicom
import pytest
from PIL import Image
from pydicom.pixels import apply_modality_lut, apply_windowing

from grandrounds.data.images.cache import open_cache
from grandrounds.data.images.dicom import HAEMORRHAGE_WINDOWS, read_dicom, read_windows, window_channels
from grandrounds.data.images.files.reading import Reading, windows_from
from grandrounds.data.images.readers import open_images
from grandrounds.data.manifest import Record, write_manifest
from grandrounds.data.partition.files import write_partition
from grandrounds.data.site import load_site_data, locate_dataset, read_site_config
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.protocol.problem import Problem

# Air, water, grey matter, fresh blood, bone.
HOUNSFIELD = np.array([[-1000, 0], [37, 70], [40, 1500]])


def test_known_tissues_have_the_grey_levels_of_the_windows(ct_slice):
    # Brain: (37 - 39.5) / 79 + 0.5 = 0.4684, (70 - 39.5) / 79 + 0.5 = 0.8861, (40 - 39.5) / 79 + 0.5 = 0.5063.
    brain = [[0, 0], [119, 226], [129, 255]]
    # Subdural: (0 - 79.5) / 199 + 0.5 = 0.1005, 0.2864, 0.4523, 0.3015; soft tissue: 0.3958, 0.4934, 0.5805, 0.5013.
    subdural = [[0, 26], [73, 115], [77, 255]]
    soft = [[0, 101], [126, 148], [128, 255]]
    channels = read_windows(ct_slice(HOUNSFIELD), "ct", HAEMORRHAGE_WINDOWS)
    np.testing.assert_array_equal(channels, np.stack([brain, subdural, soft], axis=-1))
    assert channels.dtype == np.uint8


def test_hounsfield_units_do_not_depend_on_how_they_are_stored(ct_slice):
    expected = read_windows(ct_slice(HOUNSFIELD), "ct", HAEMORRHAGE_WINDOWS)
    for attributes in (
        {"intercept": 0},
        {"WindowCenter": "400", "WindowWidth": "100"},
        {"PhotometricInterpretation": "MONOCHROME1"},
    ):
        np.testing.assert_array_equal(
            read_windows(ct_slice(HOUNSFIELD, **attributes), "ct", HAEMORRHAGE_WINDOWS), expected
        )
    doubled = ct_slice(2 * HOUNSFIELD, intercept=0, RescaleSlope="0.5")
    np.testing.assert_array_equal(read_windows(doubled, "ct", HAEMORRHAGE_WINDOWS), expected)


def test_one_window_is_a_grey_image_and_the_one_of_a_file_that_states_it(ct_slice):
    stated = ct_slice(HOUNSFIELD, WindowCenter="80", WindowWidth="200")
    assert read_windows(stated, "ct", [(40, 80)]).shape == (3, 2)
    np.testing.assert_array_equal(read_windows(stated, "ct", [(80, 200)]), read_dicom(stated, "ct"))


def test_the_order_of_the_windows_is_that_of_the_channels():
    channels = window_channels(HOUNSFIELD.astype(float), HAEMORRHAGE_WINDOWS)
    turned = window_channels(HOUNSFIELD.astype(float), HAEMORRHAGE_WINDOWS[::-1])
    np.testing.assert_array_equal(channels, turned[..., ::-1])


def test_an_image_without_hounsfield_units_is_refused(ct_slice):
    for missing in ("RescaleSlope", "RescaleIntercept"):
        with pytest.raises(DataError, match="ct has no rescale slope and intercept"):
            read_windows(ct_slice(HOUNSFIELD, **{missing: None}), "ct", HAEMORRHAGE_WINDOWS)
    stream = io.BytesIO()
    Image.new("L", (4, 4)).save(stream, "PNG")
    with pytest.raises(DataError, match=r"a\.png is not a DICOM file, which windows are for; take windows out"):
        read_windows(stream.getvalue(), "a.png", HAEMORRHAGE_WINDOWS)
    colour = {"PhotometricInterpretation": "RGB", "SamplesPerPixel": 3, "PlanarConfiguration": 0}
    with pytest.raises(DataError, match="ct is a colour image; windows in Hounsfield units are for CT slices"):
        read_windows(ct_slice(HOUNSFIELD, **colour), "ct", HAEMORRHAGE_WINDOWS)
    with pytest.raises(DataError, match="ct: its pixels cannot be decoded"):
        read_windows(ct_slice(HOUNSFIELD, BitsStored=None), "ct", HAEMORRHAGE_WINDOWS)


@pytest.mark.parametrize(
    ("windows", "message"),
    [
        ([], r"windows must be a list of one or three windows \[centre, width\], got \[\]"),
        ([[40, 80], [80, 200]], "must be a list of one or three windows"),
        ("40:80", "must be a list of one or three windows"),
        (None, "must be a list of one or three windows .* got None"),
        ([40], r"a window is two numbers \[centre, width\], got 40"),
        ([[40, 80, 1]], "a window is two numbers"),
        ([[40, True]], "a window is two numbers"),
        ([["40", 80]], "a window is two numbers"),
        ([[40, float("nan")]], "a window is two numbers"),
        ([[40, 0]], "the width of a window must be at least 1 Hounsfield unit, got 0"),
        ([[40, -80]], "the width of a window must be at least 1 Hounsfield unit, got -80"),
    ],
)
def test_windows_that_mean_nothing_are_refused(tmp_path, windows, message):
    with pytest.raises(ConfigurationError, match=f"^windows.*{message.removeprefix('windows')}"):
        windows_from(windows, "windows")
    write_manifest([Record("a.dcm", "x")], tmp_path / "m.csv")
    config = tmp_path / "grandrounds.json"
    config.write_text(json.dumps({"datasets": {"ct": {"manifest": "m.csv", "root": ".", "windows": windows}}}))
    with pytest.raises(ConfigurationError, match=r"grandrounds\.json: datasets\.ct\.windows"):
        read_site_config(config)


@pytest.fixture
def site(tmp_path, ct_slice):
    """A partition of one site with two slices under three windows."""
    (tmp_path / "ct").mkdir()
    for name in ("a", "b"):
        (tmp_path / "ct" / f"{name}.dcm").write_bytes(ct_slice(HOUNSFIELD.repeat(2, axis=1)[:2, :2]))
    records = [Record("a.dcm", "blood", patient="p"), Record("b.dcm", "bone", patient="p")]
    description = write_partition(
        {"site-1": records},
        tmp_path / "sites",
        "ct",
        tmp_path / "ct",
        ("blood", "bone"),
        {},
        reading=Reading(HAEMORRHAGE_WINDOWS),
    )
    assert description["windows"] == [[40, 80], [80, 200], [40, 380]]
    return locate_dataset("site-1", "ct", [tmp_path / "sites"])


def test_a_site_sees_the_windows_of_its_partition(site, tmp_path):
    assert site.reading.windows == HAEMORRHAGE_WINDOWS
    data = load_site_data(site, Problem("ct", ("blood", "bone"), 2), tmp_path / "cache")
    assert data.images.shape == (2, 2, 2, 3)
    assert data.cache.shapes == ((2, 2, 3, 2),)
    raw = (site.root / "a.dcm").read_bytes()
    np.testing.assert_array_equal(data.images[0], read_windows(raw, "a", HAEMORRHAGE_WINDOWS))


def test_there_must_be_as_many_windows_as_channels(site, tmp_path):
    message = r"ct: images of 1 channels \(problem\.channels\) need as many windows, got 3"
    with pytest.raises(ConfigurationError, match=message):
        load_site_data(site, Problem("ct", ("blood", "bone"), 2, 1), tmp_path / "cache")


def test_a_cache_is_of_its_windows(site, tmp_path):
    def open_with(windows):
        return open_cache(["a.dcm", "b.dcm"], site.root, 2, 3, tmp_path / "cache", reading=Reading(windows=windows))

    plain, three = open_with(()), open_with(HAEMORRHAGE_WINDOWS)
    turned = open_with(HAEMORRHAGE_WINDOWS[::-1])
    assert [cache.decoded for cache in (plain, three, turned)] == [2, 2, 2]
    np.testing.assert_array_equal(three.images, turned.images[..., ::-1])
    assert (plain.images != three.images).any()
    again = [open_with(windows) for windows in ((), ((40, 80), (80, 200), (40, 380)), HAEMORRHAGE_WINDOWS[::-1])]
    assert [cache.decoded for cache in again] == [0, 0, 0]


def test_pictures_and_arrays_have_no_windows(tmp_path):
    Image.new("L", (2, 2), 9).save(tmp_path / "a.png")
    with pytest.raises(DataError, match=r"1 of 1 images cannot be read.*a\.png is not a DICOM file"):
        open_cache(["a.png"], tmp_path, 2, 3, tmp_path / "cache", reading=Reading(windows=HAEMORRHAGE_WINDOWS))
    np.savez(tmp_path / "m.npz", train=np.zeros((1, 2, 2), np.uint8))
    with pytest.raises(DataError, match=r"m\.npz holds no DICOM files, which windows are for"):
        open_images(tmp_path / "m.npz", Reading(HAEMORRHAGE_WINDOWS))


@pytest.mark.realdata
def test_every_channel_of_a_head_is_the_slice_as_pydicom_windows_it():
    root = Path(os.environ.get("GRANDROUNDS_DATA") or Path(__file__).parents[5] / "shared" / "data")
    path = root / "dicom" / "rsna_ich_20.zip"
    if not path.exists():
        pytest.skip(f"{path} is not there; set GRANDROUNDS_DATA to the folder of real images")
    with open_images(path, Reading(HAEMORRHAGE_WINDOWS)) as reader, zipfile.ZipFile(path) as files:
        assert len(reader.names()) == 20
        for name in reader.names():
            data = pydicom.dcmread(io.BytesIO(files.read(name)))
            hounsfield = apply_modality_lut(data.pixel_array, data)
            channels = reader.read(name)
            assert channels.shape == (512, 512, 3)
            for channel, (centre, width) in enumerate(HAEMORRHAGE_WINDOWS):
                data.WindowCenter, data.WindowWidth = centre, width
                # pydicom's grey levels span what the 16 bits stored, signed or not, become by rescaling.
                least = -(2 ** (data.BitsStored - 1)) if data.PixelRepresentation else 0
                black = least * data.RescaleSlope + data.RescaleIntercept
                span = (2**data.BitsStored - 1) * data.RescaleSlope
                levels = (apply_windowing(hounsfield, data) - black) / span * 255
                assert np.abs(channels[..., channel] - levels).max() <= 0.51, (name, channel)
