"""DICOM pixels come out as a viewer shows them; what cannot be shown is refused by name."""

import io
import os
import zipfile
from pathlib import Path

import numpy as np
import pydicom
import pytest
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.encaps import encapsulate
from pydicom.pixels import apply_modality_lut, apply_windowing
from pydicom.sequence import Sequence
from pydicom.uid import CTImageStorage, ExplicitVRBigEndian, ExplicitVRLittleEndian, JPEGLSLossless, generate_uid

from grandrounds.data.images.dicom import apply_window, read_dicom
from grandrounds.errors import DataError

RAMP = np.arange(256, dtype=np.uint16).reshape(16, 16)


def dicom(pixels, photometric="MONOCHROME2", syntax=ExplicitVRLittleEndian, bits=16, raw=None, **attributes):
    meta = FileMetaDataset()
    meta.TransferSyntaxUID = syntax
    meta.MediaStorageSOPClassUID = CTImageStorage
    meta.MediaStorageSOPInstanceUID = generate_uid()
    data = Dataset()
    data.file_meta = meta
    data.SOPClassUID, data.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
    data.Rows, data.Columns = pixels.shape[:2]
    data.SamplesPerPixel = 3 if pixels.ndim == 3 else 1
    data.PhotometricInterpretation = photometric
    data.BitsAllocated = 8 * pixels.itemsize
    data.BitsStored, data.HighBit = min(bits, 8 * pixels.itemsize), min(bits, 8 * pixels.itemsize) - 1
    data.PixelRepresentation = int(pixels.dtype.kind == "i")
    if pixels.ndim == 3:
        data.PlanarConfiguration = 0
    data.PixelData = raw if raw is not None else pixels.tobytes()
    for keyword, value in attributes.items():
        setattr(data, keyword, value)
    stream = io.BytesIO()
    data.save_as(stream, enforce_file_format=True)
    return stream.getvalue()


def item(**attributes):
    entry = Dataset()
    for keyword, value in attributes.items():
        setattr(entry, keyword, value)
    return entry


def real_dicom(archive):
    root = Path(os.environ.get("GRANDROUNDS_DATA") or Path(__file__).parents[5] / "shared" / "data")
    path = root / "dicom" / archive
    if not path.exists():
        pytest.skip(f"{path} is not there; set GRANDROUNDS_DATA to the folder of real images")
    with zipfile.ZipFile(path) as files:
        return {name: files.read(name) for name in files.namelist()}


def test_the_files_window_is_used_after_rescaling():
    # 1000 is 40 HU: (40 - 39.5) / 79 + 0.5 = 0.5063, times 255 = 129.1
    pixels = np.array([[0, 960], [1000, 2000]], np.uint16)
    raw = dicom(pixels, RescaleSlope="1", RescaleIntercept="-960", WindowCenter="40", WindowWidth="80")
    np.testing.assert_array_equal(read_dicom(raw, "ct"), [[0, 0], [129, 255]])


def test_the_first_of_several_windows_is_used():
    raw = dicom(RAMP, WindowCenter=["128", "10"], WindowWidth=["256", "5"])
    np.testing.assert_array_equal(read_dicom(raw, "ct"), RAMP)


def test_monochrome1_is_turned_around():
    raw = dicom(RAMP, "MONOCHROME1", WindowCenter="128", WindowWidth="256")
    np.testing.assert_array_equal(read_dicom(raw, "xray"), 255 - RAMP)


def test_signed_values_are_read_as_signed():
    pixels = np.array([[-1000, 0], [500, 1000]], np.int16)
    levels = read_dicom(dicom(pixels, WindowCenter="0.5", WindowWidth="2001"), "ct")
    np.testing.assert_array_equal(levels, [[0, 128], [191, 255]])


@pytest.mark.parametrize("width", [{}, {"WindowWidth": "0"}, {"WindowWidth": "0.5"}, {"WindowWidth": ""}])
def test_without_a_usable_window_the_range_is_that_between_percentiles(width):
    pixels = np.full((100, 100), 50, np.uint16)
    pixels[:50] = 150
    pixels[0, 0] = 60000
    levels = read_dicom(dicom(pixels, WindowCenter="9", **width), "mr")
    assert levels[0, 0] == levels[1, 1] == 255
    assert levels[99, 99] == 0


def test_padding_does_not_set_the_contrast():
    pixels = np.full((10, 10), -2000, np.int16)
    pixels[2:8, 2:8] = np.linspace(0, 100, 36).reshape(6, 6).round()
    plain, padded = (read_dicom(dicom(pixels, **extra), "ct") for extra in ({}, {"PixelPaddingValue": -2000}))
    assert np.ptp(plain[2:8, 2:8].astype(int)) < 20
    assert np.ptp(padded[2:8, 2:8].astype(int)) == 255
    assert padded[0, 0] == 0


@pytest.mark.filterwarnings("error")
def test_a_constant_image_is_black_not_an_error():
    assert (read_dicom(dicom(np.full((4, 4), 7, np.uint16)), "flat") == 0).all()


@pytest.mark.parametrize("bits", [8, 12])
def test_a_values_of_interest_table_is_followed(bits):
    table = [0, 0, 2**bits - 1, (2**bits - 1) // 3]
    voi = item(LUTDescriptor=[4, 2, bits], LUTData=table)
    voi["LUTDescriptor"].VR, voi["LUTData"].VR = "US", "US"
    pixels = np.array([[0, 2, 3], [4, 5, 300]], np.uint16)
    levels = read_dicom(dicom(pixels, VOILUTSequence=Sequence([voi]), WindowCenter="1", WindowWidth="2"), "xray")
    np.testing.assert_array_equal(levels, [[0, 0, 0], [255, 85, 85]])


@pytest.mark.parametrize(("syntax", "order"), [(ExplicitVRLittleEndian, "<"), (ExplicitVRBigEndian, ">")])
def test_a_table_stored_as_bytes_is_followed(syntax, order):
    voi = item(LUTDescriptor=[4, 0, 16], LUTData=np.array([0, 65535, 16384, 0], f"{order}u2").tobytes())
    voi["LUTDescriptor"].VR, voi["LUTData"].VR = "US", "OW"
    pixels = np.array([[0, 1], [2, 3]], np.uint16)
    stored = pixels.astype(f"{order}u2").tobytes()
    levels = read_dicom(dicom(pixels, syntax=syntax, raw=stored, VOILUTSequence=Sequence([voi])), "xray")
    np.testing.assert_array_equal(levels, [[0, 255], [64, 0]])


def test_a_table_may_start_below_zero_though_written_unsigned():
    voi = item(LUTDescriptor=[4, 2**16 - 2, 8], LUTData=[10, 20, 30, 40])
    voi["LUTDescriptor"].VR, voi["LUTData"].VR = "US", "US"
    levels = read_dicom(dicom(np.array([[-9, -2], [-1, 1]], np.int16), VOILUTSequence=Sequence([voi])), "ct")
    np.testing.assert_array_equal(levels, [[10, 10], [20, 40]])


def test_an_enhanced_images_window_and_rescaling_are_found_in_its_groups():
    groups = item(
        PixelValueTransformationSequence=Sequence([item(RescaleSlope="2", RescaleIntercept="-10", RescaleType="HU")]),
        FrameVOILUTSequence=Sequence([item(WindowCenter="128", WindowWidth="256")]),
    )
    levels = read_dicom(dicom(RAMP, SharedFunctionalGroupsSequence=Sequence([groups])), "enhanced")
    np.testing.assert_array_equal(levels, np.clip(2 * RAMP.astype(int) - 10, 0, 255))


def test_several_frames_are_refused():
    raw = dicom(RAMP, raw=np.stack([RAMP, RAMP[::-1]]).tobytes(), NumberOfFrames="2")
    with pytest.raises(DataError, match="cine has 2 frames, expected one"):
        read_dicom(raw, "cine")


@pytest.mark.parametrize("planar", [0, 1])
def test_colour_is_read_in_either_planar_configuration(planar):
    colour = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    stored = colour if planar == 0 else np.ascontiguousarray(colour.transpose(2, 0, 1))
    raw = dicom(colour, "RGB", bits=8, raw=stored.tobytes(), PlanarConfiguration=planar)
    np.testing.assert_array_equal(read_dicom(raw, "us"), colour)


def test_ybr_becomes_rgb():
    # Y 76, Cb 85, Cr 255 is pure red (ITU-R 601, full range).
    ybr = np.broadcast_to(np.array([76, 85, 255], np.uint8), (2, 2, 3)).copy()
    rgb = read_dicom(dicom(ybr, "YBR_FULL", bits=8), "us").astype(int)
    assert (np.abs(rgb - [255, 0, 0]) <= 2).all()


def test_sixteen_bit_colour_is_scaled_by_its_bits():
    colour = np.broadcast_to(np.array([0, 2048, 4095], np.uint16), (2, 2, 3)).copy()
    np.testing.assert_array_equal(read_dicom(dicom(colour, "RGB", bits=12), "slide")[0, 0], [0, 128, 255])


def test_palette_colour_is_looked_up():
    tables = {"Red": [0, 257 * 10, 65535], "Green": [0, 257 * 20, 0], "Blue": [257, 257 * 30, 0]}
    extra = {}
    for colour, table in tables.items():
        extra[f"{colour}PaletteColorLookupTableDescriptor"] = [3, 0, 16]
        extra[f"{colour}PaletteColorLookupTableData"] = np.array(table, "<u2").tobytes()
    levels = read_dicom(dicom(np.array([[0, 1], [2, 1]], np.uint8), "PALETTE COLOR", bits=8, **extra), "us")
    np.testing.assert_array_equal(levels, [[[0, 0, 1], [10, 20, 30]], [[255, 0, 0], [10, 20, 30]]])


@pytest.mark.parametrize("function", ["LINEAR", "LINEAR_EXACT", "SIGMOID"])
def test_windows_agree_with_pydicom(function):
    raw = pydicom.dcmread(
        io.BytesIO(dicom(RAMP, bits=8, WindowCenter="100", WindowWidth="60", VOILUTFunction=function))
    )
    shown = apply_windowing(raw.pixel_array, raw)
    np.testing.assert_allclose(apply_window(RAMP.astype(float), 100, 60, function), shown / 255, atol=1e-12)


def test_a_window_of_width_one_is_a_threshold():
    np.testing.assert_array_equal(apply_window(np.array([39.0, 39.5, 40.0]), 40, 1), [0, 0, 1])


def test_an_unknown_window_function_is_refused():
    with pytest.raises(ValueError, match=r"LINEAR_EXACT.*'CUBIC'"):
        apply_window(np.zeros(1), 0, 2, "CUBIC")


def test_a_syntax_without_decoder_is_named_with_what_to_install():
    available = pydicom.pixels.get_decoder(JPEGLSLossless).is_available
    if available:
        pytest.skip("a JPEG-LS decoder is installed")
    raw = dicom(RAMP, syntax=JPEGLSLossless, raw=encapsulate([b"\xff\xd8\xff\xd9"]))
    with pytest.raises(DataError, match=r"scan\.dcm.*Lossless.*'grandrounds\[dicom\]'"):
        read_dicom(raw, "scan.dcm")


def test_a_file_that_is_truncated_or_not_dicom_is_refused():
    whole = dicom(RAMP)
    with pytest.raises(DataError, match=r"a\.dcm is not a DICOM file"):
        read_dicom(b"plain text" * 50, "a.dcm")
    with pytest.raises(DataError, match=r"b\.dcm"):
        read_dicom(whole[:-100], "b.dcm")
    with pytest.raises(DataError, match=r"c\.dcm"):
        read_dicom(whole[:200], "c.dcm")
    with pytest.raises(DataError, match=r"d\.dcm is not a DICOM file"):
        read_dicom(b"", "d.dcm")


def test_a_file_without_pixels_is_refused():
    data = pydicom.dcmread(io.BytesIO(dicom(RAMP)))
    del data.PixelData
    stream = io.BytesIO()
    data.save_as(stream)
    with pytest.raises(DataError, match="report has no pixel data: it is not an image or it is truncated"):
        read_dicom(stream.getvalue(), "report")


@pytest.mark.parametrize("attribute", ["Rows", "PhotometricInterpretation", "BitsStored"])
def test_a_file_that_lacks_what_decoding_needs_is_refused(attribute):
    data = pydicom.dcmread(io.BytesIO(dicom(RAMP)))
    delattr(data, attribute)
    stream = io.BytesIO()
    data.save_as(stream)
    with pytest.raises(DataError, match="odd: its pixels cannot be decoded"):
        read_dicom(stream.getvalue(), "odd")


@pytest.mark.realdata
def test_every_head_ct_slice_is_shown_as_pydicom_windows_it():
    files = real_dicom("rsna_ich_20.zip")
    assert len(files) == 20
    for name, raw in files.items():
        data = pydicom.dcmread(io.BytesIO(raw))
        shown = apply_windowing(apply_modality_lut(data.pixel_array, data), data)
        expected = (shown - shown.min()) / (shown.max() - shown.min()) * 255
        levels = read_dicom(raw, name)
        assert levels.shape == (512, 512)
        assert np.abs(levels - expected).max() <= 1, name


@pytest.mark.realdata
def test_sample_files_in_six_syntaxes_are_read_or_refused_by_name():
    files = real_dicom("pydicom_samples.zip")
    assert len(files) == 9
    jpeg_ls = files.pop("MR_small_jpeg_ls_lossless.dcm")
    decoded = {name: read_dicom(raw, name) for name, raw in files.items()}
    if pydicom.pixels.get_decoder(JPEGLSLossless).is_available:
        np.testing.assert_array_equal(read_dicom(jpeg_ls, "jpeg-ls"), decoded["MR_small.dcm"])
    else:
        with pytest.raises(DataError, match=r"JPEG-LS.*grandrounds\[dicom\]"):
            read_dicom(jpeg_ls, "jpeg-ls")
    assert all(levels.std() > 5 for levels in decoded.values())
    for name in ("MR_small_RLE.dcm", "MR_small_bigendian.dcm", "MR_small_implicit.dcm", "MR_small_jp2klossless.dcm"):
        np.testing.assert_array_equal(decoded[name], decoded["MR_small.dcm"])
