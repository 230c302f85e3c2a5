"""PBC Barcelona and BloodMNIST are read as they are published."""

import zipfile
from collections import Counter

import numpy as np
import pytest

from grandrounds.data.datasets.blood import PBC_CLASSES, read_bloodmnist, read_pbc
from grandrounds.data.images.readers import open_images
from grandrounds.data.manifest import Record
from grandrounds.errors import DataError

TABLE = "image,label,patient,source,subtype\nig/MY_1.jpg,ig,,PBC,MY\nplatelet/P_1.jpg,platelet,,PBC,PLATELET\n"


def archive(root, table=TABLE, images=("ig/MY_1.jpg", "platelet/P_1.jpg")):
    (root / "pbc_barcelona_manifest.csv").write_text(table)
    with zipfile.ZipFile(root / "pbc_barcelona_96.zip", "w") as opened:
        for image in images:
            opened.writestr(image, b"")
    return root


def test_the_published_folders_are_the_classes(tmp_path):
    for name in PBC_CLASSES:
        (tmp_path / "PBC_dataset_normal_DIB" / name).mkdir(parents=True)
        (tmp_path / "PBC_dataset_normal_DIB" / name / "A_1.jpg").touch()
    (tmp_path / "PBC_dataset_normal_DIB" / "ig" / ".hidden.jpg").touch()
    records, root = read_pbc(tmp_path)
    assert root == tmp_path
    assert [record.label for record in records] == list(PBC_CLASSES)
    assert records[3] == Record("PBC_dataset_normal_DIB/ig/A_1.jpg", "ig", source="PBC-Barcelona")


def test_the_table_beside_an_archive_is_read(tmp_path):
    records, root = read_pbc(archive(tmp_path))
    assert records == (Record("ig/MY_1.jpg", "ig", source="PBC"), Record("platelet/P_1.jpg", "platelet", source="PBC"))
    assert root.name == "pbc_barcelona_96.zip"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"images": ("ig/MY_1.jpg",)}, r"line 3: image 'platelet/P_1\.jpg' was looked for in .*96\.zip and not found"),
        (
            {"table": TABLE.replace(",platelet,", ",platelets,")},
            r"line 3, column label: 'platelets' .* mean 'platelet'\?",
        ),
        ({"table": TABLE + "ig/MY_1.jpg,ig,,PBC,MY\n"}, r"image 'ig/MY_1\.jpg' is listed twice"),
    ],
)
def test_mistakes_in_the_table_are_named(tmp_path, arguments, message):
    with pytest.raises(DataError, match=message):
        read_pbc(archive(tmp_path, **arguments))


def bloodmnist(path, **changed):
    generator = np.random.default_rng(0)
    arrays = {}
    for part, count in (("train", 5), ("val", 2), ("test", 3)):
        arrays[f"{part}_images"] = generator.integers(0, 256, (count, 28, 28, 3), dtype=np.uint8)
        arrays[f"{part}_labels"] = np.arange(count, dtype=np.uint8)[:, None] + 3
    arrays |= changed
    np.savez(path, **{name: content for name, content in arrays.items() if content is not None})
    return arrays


@pytest.mark.parametrize("name", ["bloodmnist.npz", "bloodmnist_64.npz"])
def test_bloodmnist_has_its_three_parts_and_the_same_classes(tmp_path, name):
    arrays = bloodmnist(tmp_path / name)
    for root in (tmp_path, tmp_path / name):
        records, path = read_bloodmnist(root)
    assert path == tmp_path / name
    assert [record.label for record in records] == [PBC_CLASSES[i] for i in (3, 4, 5, 6, 7, 3, 4, 3, 4, 5)]
    assert records[5].image == "val_images/0"
    with open_images(path) as reader:
        assert np.array_equal(reader.read(records[9].image), arrays["test_images"][2])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"val_labels": None}, "array val_labels is missing; expected labels of train, val, test"),
        ({"val_labels": np.array([[8], [0]])}, "val_labels: labels must be from 0 to 7, got 0 to 8"),
        ({"val_labels": np.array([[1]])}, "has 10 images and 9 labels"),
    ],
)
def test_a_bloodmnist_that_is_none_is_refused(tmp_path, changed, message):
    bloodmnist(tmp_path / "bloodmnist.npz", **changed)
    with pytest.raises(DataError, match=message):
        read_bloodmnist(tmp_path)
    (tmp_path / "bloodmnist.npz").write_bytes(b"no archive")
    with pytest.raises(DataError, match="cannot be opened"):
        read_bloodmnist(tmp_path)
    with pytest.raises(DataError, match=r"no BloodMNIST in .*: looked for bloodmnist\.npz, bloodmnist_64\.npz"):
        read_bloodmnist(tmp_path / "nowhere")


@pytest.mark.realdata
def test_the_real_cells_have_their_counts(realdata):
    records, root = read_pbc(realdata / "pbc")
    counts = Counter(record.label for record in records)
    assert [counts[name] for name in PBC_CLASSES] == [424, 1089, 543, 1012, 425, 497, 1165, 822]
    with open_images(root) as reader:
        assert reader.read(records[0].image).shape == (96, 96, 3)
