"""Files of several frames are named before anything is written, whatever holds them."""

import zipfile

import numpy as np
import pytest
from PIL import Image

from grandrounds.data.images.frames import require_single_frames
from grandrounds.errors import DataError
from tests.unit.data.images.test_dicom import RAMP, dicom


@pytest.fixture(params=["folder", "zip"])
def root(request, tmp_path):
    folder = tmp_path / "files"
    folder.mkdir()
    pages = [Image.new("L", (4, 4), level) for level in (1, 100, 200)]
    for name in ("a.tif", "a.gif", "a.webp"):
        pages[0].save(folder / name, save_all=True, append_images=pages[1:])
    frames = np.stack([RAMP] * 3)
    (folder / "a.dcm").write_bytes(dicom(RAMP, raw=frames.tobytes(), NumberOfFrames="3"))
    (folder / "one.dcm").write_bytes(dicom(RAMP))
    pages[0].save(folder / "one.png")
    (folder / "broken.tif").write_bytes(b"II*\0 and no more")
    if request.param == "folder":
        return folder
    with zipfile.ZipFile(tmp_path / "files.zip", "w") as archive:
        for path in folder.iterdir():
            archive.write(path, path.name)
    return tmp_path / "files.zip"


@pytest.mark.parametrize("name", ["a.tif", "a.gif", "a.webp", "a.dcm"])
def test_a_file_of_several_frames_is_refused_by_its_name(root, name):
    with pytest.raises(DataError, match=rf"{name} has 3 frames, expected one"):
        require_single_frames(root, ["one.png", name])


def test_single_missing_and_damaged_files_pass(root):
    require_single_frames(root, ["one.dcm", "one.png", "broken.tif", "gone.tif", "../a.tif", "x.jpg"])
