"""Files that are no images of a study are counted by reason, and never trained on without a word."""

import io
import zipfile

import numpy as np
import pytest
from PIL import Image
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

from grandrounds.data.datasets.own_images import read_folder
from grandrounds.data.datasets.own_options import FolderOptions
from grandrounds.data.image_files import look_at, place_at
from grandrounds.data.images.decoding import decode_picture
from grandrounds.errors import DataError


def png(seed):
    stream = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 255, (8, 8, 3), np.uint8)).save(stream, "PNG")
    return stream.getvalue()


def dicom(image_type=("ORIGINAL", "PRIMARY", "AXIAL"), modality="CT"):
    dataset = Dataset()
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset.file_meta.MediaStorageSOPClassUID = CTImageStorage
    dataset.file_meta.MediaStorageSOPInstanceUID = generate_uid()
    dataset.ImageType, dataset.Modality, dataset.PatientID = list(image_type), modality, "P"
    dataset.Rows = dataset.Columns = 4
    stream = io.BytesIO()
    dataset.save_as(stream, enforce_file_format=True)
    return stream.getvalue()


def write(root, files):
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


def classes(count=4):
    return {f"{label}/{number}.png": png(10 * number + ord(label)) for label in "ab" for number in range(count)}


def account(root, **options):
    return read_folder(root, FolderOptions(**options)).account


@pytest.mark.parametrize(
    "folder",
    [
        "@eaDir",
        "$RECYCLE.BIN",
        "System Volume Information",
        "#recycle",
        "__MACOSX",
        ".Trashes",
        "lost+found",
        "~snapshot",
        "FOUND.000",
        "thumbnails",
        "a/@eaDir",
        "a/Thumbnails",
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_folders_of_systems_are_no_classes(tmp_path, folder, packed):
    root = write(tmp_path / "images", {**classes(), f"{folder}/thumb.png": png(1)})
    if packed:
        with zipfile.ZipFile(tmp_path / "images.zip", "w") as archive:
            for path in root.rglob("*.png"):
                archive.write(path, path.relative_to(root))
        root = tmp_path / "images.zip"
    found = account(root)
    assert (len(found.used), found.reasons) == (8, {"hidden or system files": 1})


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ({"image_type": ("ORIGINAL", "PRIMARY", "LOCALIZER")}, "localizers"),
        ({"image_type": ("DERIVED", "SECONDARY", "SCREEN SAVE")}, "screen captures"),
        ({"modality": "SEG"}, "of the modality SEG"),
    ],
)
def test_what_headers_call_no_image_of_the_study_is_left_out_unless_all_are(tmp_path, header, reason):
    slices = {f"{label}/IM{number}": dicom() for label in "ab" for number in range(3)}
    root = write(tmp_path / "ct", {**slices, "a/S": dicom(**header), "b/S": dicom(**header)})
    assert account(root).reasons == {reason: 2}
    alone = write(tmp_path / "alone", {f"{label}/IM{number}": dicom(**header) for label in "ab" for number in range(3)})
    assert len(account(alone).used) == 6


@pytest.mark.parametrize("odd", [{"modality": "OT"}, {"image_type": ("DERIVED", "SECONDARY")}])
def test_what_may_be_no_image_of_the_study_is_said(tmp_path, odd):
    slices = {f"{label}/IM{number}": dicom() for label in "ab" for number in range(3)}
    assert not account(write(tmp_path / "ct", slices)).notes
    found = account(write(tmp_path / "ct", {"a/S": dicom(**odd)}))
    assert (len(found.used), len(found.notes)) == (7, 1)


def test_pictures_of_a_viewer_beside_slices_are_left_out(tmp_path):
    disc = {f"{label}/IM{number}": dicom() for label in "ab" for number in range(3)}
    root = write(tmp_path / "disc", {**disc, "VIEWER/splash.png": png(1), "VIEWER/view.exe": b"MZ"})
    images, left = look_at(place_at(root))
    assert (len(images), left["VIEWER/splash.png"]) == (6, "pictures of a viewer")


def test_an_archive_that_contains_itself_is_read_once(tmp_path):
    root = write(tmp_path / "images", classes())
    write(root, {f"images/{name}": (root / name).read_bytes() for name in classes()})
    assert account(root).reasons == {"second copies in another folder": 8}


def test_a_class_without_an_image_is_named(tmp_path):
    root = write(tmp_path / "images", {**classes(), "nevus/damaged.png": b"x"})
    (root / "melanoma").mkdir()
    assert "melanoma, nevus" in account(root).notes[0]


def test_the_labels_of_one_folder_are_looked_for_in_the_table_beside_it(tmp_path):
    root = write(tmp_path / "set", {f"Input/{number}.png": png(number) for number in range(4)})
    write(root, {"truth.csv": b"image,label\n0,a\n"})
    with pytest.raises(DataError, match=r"grandrounds import \S+truth\.csv --root \S+ --out"):
        account(root)


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "HEIC"),
        (b"\0\0\0\x0cJXL \r\n\x87\n", "JPEG XL"),
        (b"\xff\x0a\xfa\x1f", "JPEG XL"),
    ],
)
def test_formats_that_no_decoder_reads_are_named_with_what_to_do(tmp_path, head, kind):
    root = write(tmp_path / "images", {**classes(), "a/photo.heic": head + bytes(99)})
    assert account(root).reasons == {f"{kind} (convert to JPEG)": 1}
    with pytest.raises(DataError, match=kind):
        decode_picture(head + bytes(99), "photo")
