"""Cases of DICOM attributes with the values that pydicom's functions or the standard, by hand, give."""

import io
import re
from pathlib import Path

import numpy as np
import pydicom
import pytest
from pydicom.pixels import apply_color_lut, apply_modality_lut, apply_voi_lut
from pydicom.uid import DeflatedExplicitVRLittleEndian, ImplicitVRLittleEndian

from grandrounds.data.images import dicom as dicom_files
from grandrounds.data.images.dicom import read_dicom, read_header, read_hounsfield, render_dicom
from grandrounds.errors import DataError
from tests.unit.data.images.test_dicom import dicom, item

TWELVE = np.array([[0, 1024, 2048, 4095]], np.uint16)
WINDOW = {"WindowCenter": "2048", "WindowWidth": "4096"}
SHOWN = [0, 64, 128, 255]


def shown(raw):
    return read_dicom(raw, "a.dcm")[0].tolist()


def table(entries, first, bits, vr="US", as_bytes=False):
    entry = item(LUTDescriptor=[len(entries) % 2**16, first, bits], LUTData=entries)
    entry["LUTDescriptor"].VR = "SS" if first < 0 else "US"
    if as_bytes:
        entry.LUTData = np.array(entries, "<u2").tobytes()
    entry["LUTData"].VR = "OW" if as_bytes else vr
    return [entry]


def palette(words, bits, dtype):
    tags = {}
    for colour, entries in zip(("Red", "Green", "Blue"), words, strict=True):
        tags[f"{colour}PaletteColorLookupTableDescriptor"] = [len(entries), 0, bits]
        tags[f"{colour}PaletteColorLookupTableData"] = np.array(entries, dtype).tobytes()
    return tags


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"RescaleSlope": "", "RescaleIntercept": ""}, SHOWN),
        ({"RescaleSlope": "2", "RescaleIntercept": ""}, [0, 128, 255, 255]),
        ({"RescaleSlope": "", "RescaleIntercept": "1024"}, [64, 128, 191, 255]),
        ({"VOILUTFunction": "LINEAR"}, SHOWN),
        ({"VOILUTFunction": "LINEAR_EXACT"}, SHOWN),
        # 1 / (1 + exp(-4 (x - 2048) / 4096)): 0.1192, 0.2689, 0.5, 0.8807
        ({"VOILUTFunction": "SIGMOID"}, [30, 69, 128, 225]),
        ({"VOILUTFunction": "sigmoid "}, [30, 69, 128, 225]),
        ({"VOILUTFunction": ""}, SHOWN),
        ({"RescaleSlope": " ", "RescaleIntercept": "1024"}, [64, 128, 191, 255]),
        ({"WindowCenter": ["1024", ""], "WindowWidth": "2048"}, [0, 128, 255, 255]),
    ],
)
def test_windows_after_rescaling(attributes, expected):
    assert shown(dicom(TWELVE, bits=12, **{**WINDOW, **attributes})) == expected


def with_texts(texts):
    """A file with a window whose numbers are these texts, which pydicom would not write."""
    places = {keyword: f"{7 + number}" * 20 for number, keyword in enumerate(texts)}
    raw = dicom(TWELVE, bits=12, **{**WINDOW, **places})
    for keyword, text in texts.items():
        raw = raw.replace(places[keyword].encode(), text.encode().ljust(20))
    return raw


@pytest.mark.parametrize(
    "texts",
    [
        {"RescaleSlope": "2,0"},
        {"WindowCenter": "1024,0\\9,5", "WindowWidth": "2048,0\\1,5"},
        {"WindowCenter": "1024\\9,5", "WindowWidth": "2048"},
    ],
)
@pytest.mark.filterwarnings("ignore:Invalid value for VR DS")
def test_decimal_commas_of_one_or_several_values_are_read(texts):
    assert shown(with_texts(texts)) == [0, 128, 255, 255]


@pytest.mark.parametrize("text", ["1.0.0", "400 HU", "N/A", "2.048,5"])
@pytest.mark.parametrize("keyword", ["WindowCenter", "WindowWidth", "RescaleSlope", "RescaleIntercept"])
@pytest.mark.filterwarnings("ignore:Invalid value for VR DS")
def test_a_text_that_is_no_number_is_named_with_its_attribute(keyword, text):
    with pytest.raises(DataError, match=rf"a\.dcm: .*\({keyword} is '{re.escape(text)}', which is no number\)"):
        shown(with_texts({keyword: text}))


@pytest.mark.parametrize("signed", [0, 1])
@pytest.mark.parametrize("high", [11, 12, 15])
def test_values_are_where_high_bit_says(signed, high):
    values = np.array([[-2048, -1024, 0, 2047]]) if signed else TWELVE.astype(int)
    words = ((values & 0xFFF) << (high - 11)).astype(np.uint16)
    centre = "0" if signed else "2048"
    raw = dicom(words, bits=12, HighBit=high, PixelRepresentation=signed, WindowCenter=centre, WindowWidth="4096")
    assert shown(raw) == SHOWN
    scaled = dicom(words, bits=12, HighBit=high, PixelRepresentation=signed, RescaleSlope="1", RescaleIntercept="-5")
    np.testing.assert_array_equal(read_hounsfield(scaled, "a"), values - 5)


def test_a_high_bit_that_cannot_be_is_refused_by_its_name():
    with pytest.raises(DataError, match=r"a\.dcm: HighBit is 5, .*12 bits"):
        shown(dicom(TWELVE, bits=12, HighBit=5))


@pytest.mark.parametrize("as_bytes", [False, True])
@pytest.mark.parametrize("bits", [8, 10, 12, 16])
def test_a_modality_table_is_applied_as_pydicom_does(bits, as_bytes):
    entries = [5, 1, (2**bits - 1) // 2, 2**bits - 1]
    pixels = np.array([[0, 3, 4, 5, 9]], np.uint16)
    raw = dicom(pixels, bits=12, ModalityLUTSequence=table(entries, 2, bits, as_bytes=as_bytes))
    data = pydicom.dcmread(io.BytesIO(dicom(pixels, bits=12, ModalityLUTSequence=table(entries, 2, 16))))
    np.testing.assert_array_equal(read_hounsfield(raw, "a"), apply_modality_lut(data.pixel_array, data))


def test_the_first_value_of_a_modality_table_may_be_negative():
    pixels = np.array([[-9, -2, -1, 1]], np.int16)
    for first in (-2, 2**16 - 2):
        raw = dicom(pixels, ModalityLUTSequence=table([10, 20, 30, 40], first, 12))
        np.testing.assert_array_equal(read_hounsfield(raw, "a"), [[10, 10, 20, 40]])


@pytest.mark.parametrize("bits", [8, 12, 16])
@pytest.mark.parametrize("as_bytes", [False, True])
def test_a_table_of_interest_is_applied_as_pydicom_does(bits, as_bytes):
    entries = [0, 2**bits - 1, (2**bits - 1) // 3, 0]
    pixels = np.array([[0, 1, 2, 3, 99]], np.uint16)
    raw = dicom(pixels, VOILUTSequence=table(entries, 0, bits, as_bytes=as_bytes))
    plain = pydicom.dcmread(io.BytesIO(dicom(pixels, VOILUTSequence=table(entries, 0, bits))))
    expected = apply_voi_lut(plain.pixel_array, plain) * 255.0 / (2**bits - 1)
    assert shown(raw) == np.rint(expected)[0].tolist()


@pytest.mark.parametrize(
    ("bits", "highest", "level"),
    [
        (16, 4095, 255), (16, 4094, 255), (16, 4096, 16), (16, 2000, 125), (16, 1024, 64), (16, 1023, 64), (16, 255, 16),
        (16, 16383, 64), (16, 16384, 64), (16, 32767, 127), (14, 4095, 64), (14, 4096, 64), (12, 1023, 64), (10, 255, 64),
    ],
)  # fmt: skip
def test_only_a_table_of_interest_of_twelve_bits_that_states_sixteen_is_not_as_it_says(bits, highest, level):
    raw = dicom(np.array([[0, 1]], np.uint16), VOILUTSequence=table([0, highest], 0, bits))
    assert shown(raw) == [0, level]


def test_entries_of_eight_bits_may_be_packed_in_words():
    packed = dicom(np.array([[0, 1, 2, 3]], np.uint16), VOILUTSequence=table([0x0A00, 0xFF80], 0, 8))
    data = pydicom.dcmread(io.BytesIO(packed))
    data.VOILUTSequence[0].LUTDescriptor = [4, 0, 8]
    stream = io.BytesIO()
    data.save_as(stream)
    assert shown(stream.getvalue()) == [0, 10, 128, 255]


def test_a_table_shorter_than_its_descriptor_is_refused_by_its_name():
    lut = table([1, 2, 3], 0, 16)
    lut[0].LUTDescriptor = [9, 0, 16]
    with pytest.raises(DataError, match=r"a\.dcm: VOILUTSequence: LUTData has 3 entries, its descriptor states 9"):
        shown(dicom(TWELVE, VOILUTSequence=lut))


WIDE = [[0, 65535, 0, 128 * 257], [0, 0, 65535, 128 * 257], [0, 0, 0, 128 * 257]]
NARROW = [[0, 255, 0, 128], [0, 0, 255, 128], [0, 0, 0, 128]]


@pytest.mark.parametrize(
    ("words", "bits", "dtype"),
    [(WIDE, 16, "<u2"), (NARROW, 16, "<u2"), (NARROW, 8, "<u2"), (NARROW, 8, "u1"), (NARROW, 16, "u1")],
)
def test_palettes_hold_sixteen_or_eight_bits_whatever_they_say(words, bits, dtype):
    raw = dicom(np.array([[0, 1, 2, 3]], np.uint8), "PALETTE COLOR", bits=8, **palette(words, bits, dtype))
    picture = render_dicom(raw, "us.dcm")
    assert np.array(picture.image)[0].tolist() == [[0, 0, 0], [255, 0, 0], [0, 255, 0], [128, 128, 128]]
    assert picture.rules == ("palette",)
    data = pydicom.dcmread(io.BytesIO(raw))
    colours = apply_color_lut(data.pixel_array, data)
    np.testing.assert_array_equal(np.rint(colours / colours.max() * 255), np.array(picture.image))


@pytest.mark.parametrize("dtype", [np.int16, np.uint16])
@pytest.mark.parametrize("limits", [(0, None), (0, 30), (30, 0)])
def test_padding_and_its_range_do_not_set_the_contrast(dtype, limits):
    offset = -2000 if dtype is np.int16 else 0
    pixels = np.arange(1000, 2024, dtype=np.int64).reshape(32, 32)
    clean = read_dicom(dicom((pixels + offset).astype(dtype)), "a")
    pixels[0], pixels[1, :3] = 0, 0 if limits[1] is None else 15
    value, limit = (None if one is None else one + offset for one in limits)
    tags = {"PixelPaddingValue": value} | ({} if limit is None else {"PixelPaddingRangeLimit": limit})
    picture = render_dicom(dicom((pixels + offset).astype(dtype), **tags), "a")
    assert np.abs(np.array(picture.image)[2:].astype(int) - clean[2:]).max() <= 12
    assert picture.rules == ("stretch", "padding")


def test_padding_of_signed_pixels_may_be_written_without_sign():
    pixels = np.full((8, 8), -2000, np.int16)
    pixels[2:] = np.arange(48).reshape(6, 8)
    raw = dicom(pixels)
    data = pydicom.dcmread(io.BytesIO(raw))
    data.add_new("PixelPaddingValue", "US", 2**16 - 2000)
    stream = io.BytesIO()
    data.save_as(stream)
    assert np.ptp(read_dicom(stream.getvalue(), "a")[2:]) == 255


@pytest.mark.parametrize("attributes", [{}, {"RescaleSlope": "1", "RescaleIntercept": "0"}, {"WindowCenter": ""}])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_eight_bits_without_a_window_are_shown_as_they_are(dtype, attributes):
    picture = render_dicom(dicom(np.array([[3, 100, 101, 7]], dtype), bits=8, **attributes), "a")
    assert (np.array(picture.image)[0].tolist(), picture.rules) == ([3, 100, 101, 7], ())


def test_stated_bits_are_used_where_no_window_is():
    assert np.array(render_dicom(dicom(TWELVE, bits=16), "a", bits=12).image)[0].tolist() == SHOWN
    assert np.array(render_dicom(dicom(TWELVE, bits=16, **WINDOW), "a", bits=8).image)[0].tolist() == SHOWN
    with pytest.raises(DataError, match=r"a\.dcm has values from 0 to 4095, outside 0 to 1023"):
        render_dicom(dicom(TWELVE, bits=16), "a.dcm", bits=10)


def test_a_file_without_preamble_or_transfer_syntax_is_read():
    data = pydicom.dcmread(io.BytesIO(dicom(TWELVE, bits=12, **WINDOW)))
    data.file_meta, data.preamble = pydicom.dataset.FileMetaDataset(), None
    for implicit in (True, False):
        stream = io.BytesIO()
        pydicom.dcmwrite(stream, data, implicit_vr=implicit, little_endian=True, enforce_file_format=False)
        assert stream.getvalue()[128:132] != b"DICM"
        assert shown(stream.getvalue()) == SHOWN


def test_attributes_whose_type_depends_on_the_pixels_are_read_in_implicit_files():
    pixels = np.full((8, 8), -2000, np.int16)
    pixels[2:] = np.arange(48).reshape(6, 8)
    raw = dicom(pixels, syntax=ImplicitVRLittleEndian, PixelPaddingValue=-2000)
    assert np.ptp(read_dicom(raw, "a")[2:]) == 255


@pytest.mark.parametrize(
    ("numbers", "named"),
    [
        ({"WindowCenter": "nan"}, "WindowCenter"),
        ({"WindowWidth": "inf"}, "WindowWidth"),
        ({"WindowWidth": "1e300"}, "WindowWidth"),
        ({"RescaleSlope": "1e300", "RescaleIntercept": "0"}, "RescaleSlope"),
        ({"RescaleSlope": "1", "RescaleIntercept": "-1e300"}, "RescaleIntercept"),
    ],
)
@pytest.mark.filterwarnings("ignore:Invalid value for VR DS")
def test_numbers_that_no_device_measures_are_refused_by_name(numbers, named):
    with pytest.raises(DataError, match=f"a: its pixels cannot be decoded .*{named}"):
        render_dicom(dicom(TWELVE, bits=12, **{**WINDOW, **numbers}), "a")


def float_dicom(values):
    data = pydicom.dcmread(io.BytesIO(dicom(np.zeros(values.shape, np.uint16))))
    for keyword in ("PixelData", "BitsStored", "HighBit", "PixelRepresentation"):
        del data[keyword]
    data.BitsAllocated, data.FloatPixelData = 32, values.astype("<f4").tobytes()
    stream = io.BytesIO()
    data.save_as(stream)
    return stream.getvalue()


@pytest.mark.parametrize(("odd", "level"), [(np.nan, 0), (-np.inf, 0), (np.inf, 255)])
def test_what_was_not_measured_is_as_dark_as_the_darkest_and_leaves_the_others_as_they_are(odd, level):
    values = np.tile(np.arange(256.0), (256, 1))
    clean = read_dicom(float_dicom(values), "a")
    values[0, 7] = odd
    got = read_dicom(float_dicom(values), "a")
    assert got[0, 7] == level
    np.testing.assert_array_equal(got[1:], clean[1:])


def test_integers_are_not_searched_for_what_is_not_finite(monkeypatch):
    monkeypatch.delattr(dicom_files, "_finite")
    assert shown(dicom(TWELVE, bits=12, **WINDOW)) == SHOWN


def test_an_image_without_any_measured_value_is_refused():
    with pytest.raises(DataError, match=r"a\.dcm: all of its pixels are NaN"):
        shown(float_dicom(np.full((4, 4), np.nan)))


@pytest.mark.parametrize("kind", ["HSV", "ARGB", "CMYK", "YBR_PARTIAL_422"])
def test_colours_that_no_decoder_turns_into_rgb_are_refused_by_their_name(kind):
    with pytest.raises(DataError, match=rf"a\.dcm has its colours as {kind}, .*RGB"):
        shown(dicom(np.zeros((2, 2, 3), np.uint8), kind, bits=8))


@pytest.mark.parametrize("kind", ["monochrome1", " MONOCHROME1"])
def test_the_kind_of_grey_is_read_in_any_case_and_without_blanks(kind):
    assert shown(dicom(TWELVE, kind, bits=12, **WINDOW)) == [255 - level for level in SHOWN]


@pytest.mark.parametrize(
    "keyword", ["SamplesPerPixel", "PhotometricInterpretation", "BitsStored", "PixelRepresentation"]
)
def test_a_missing_attribute_is_named(keyword):
    data = pydicom.dcmread(io.BytesIO(dicom(TWELVE, bits=12)))
    del data[keyword]
    stream = io.BytesIO()
    data.save_as(stream)
    with pytest.raises(DataError, match=r"a\.dcm.*\b[Mm]issing") as error:
        shown(stream.getvalue())
    assert keyword.casefold() in str(error.value).replace(" ", "").casefold()
    assert "object" not in str(error.value)


def test_pixels_of_no_bytes_are_no_pixels():
    with pytest.raises(DataError, match=r"a\.dcm has no pixel data"):
        shown(dicom(TWELVE, raw=b""))


def test_a_window_without_width_is_none():
    picture = render_dicom(dicom(TWELVE, bits=12, **{**WINDOW, "WindowWidth": "0"}), "a")
    assert picture.rules == ("stretch",)
    assert np.asarray(picture.image).tolist() == np.asarray(render_dicom(dicom(TWELVE, bits=12), "a").image).tolist()


def test_each_rule_is_recorded():
    assert render_dicom(dicom(TWELVE, "MONOCHROME1", bits=12, **WINDOW), "a").rules == ("window", "polarity")
    assert render_dicom(dicom(TWELVE, bits=12), "a").rules == ("stretch",)
    voi = table([0, 255], 0, 8)
    assert render_dicom(dicom(TWELVE, bits=12, VOILUTSequence=voi), "a").rules == ("VOI LUT",)
    modality = table([0, 9], 0, 16)
    assert render_dicom(dicom(TWELVE, bits=12, ModalityLUTSequence=modality), "a").rules == ("modality LUT", "stretch")
    colour = np.zeros((2, 2, 3), np.uint16)
    assert render_dicom(dicom(colour, "RGB", bits=12), "a").rules == ("depth",)


@pytest.mark.parametrize(
    ("attributes", "word"),
    [
        ({"VOILUTFunction": "CUBIC", **WINDOW}, "VOILUTFunction"),
        ({"NumberOfFrames": "4"}, "4 frames"),
        ({"RescaleSlope": "nan"}, "RescaleSlope"),
        ({"RescaleSlope": "0"}, "RescaleSlope"),
        ({"RescaleIntercept": "inf"}, "RescaleIntercept"),
    ],
)
@pytest.mark.filterwarnings("ignore:Invalid value for VR DS")
def test_refusals_name_the_attribute(attributes, word):
    with pytest.raises(DataError, match=f"odd.*{word}"):
        read_dicom(dicom(TWELVE, bits=12, **attributes), "odd")


def open_file(name):
    return Path(name).open("rb")


@pytest.mark.parametrize("filled", [0, 2**21])
def test_a_deflated_file_is_inflated_up_to_a_limit(tmp_path, monkeypatch, filled):
    monkeypatch.setattr(dicom_files, "MAX_INFLATED", 2**20)
    path = tmp_path / "a.dcm"
    path.write_bytes(dicom(TWELVE, bits=12, syntax=DeflatedExplicitVRLittleEndian, EncapsulatedDocument=bytes(filled)))
    assert path.stat().st_size < 2**13
    if not filled:
        assert read_dicom(path.read_bytes(), "a").shape == TWELVE.shape
        assert read_header(open_file, str(path), ("Modality",)).keys() == {"Modality"}
        return
    monkeypatch.setattr(pydicom, "dcmread", lambda *arguments, **named: pytest.fail("inflated"))
    with pytest.raises(DataError, match="a expands to more than 1 MiB"):
        read_dicom(path.read_bytes(), "a")
    with pytest.raises(DataError, match=r"a\.dcm expands to more than 1 MiB"):
        read_header(open_file, str(path), ("Modality",))
