"""HAM10000 is read from both layouts, and what is missing is named."""

import os
import zipfile
from collections import Counter
from pathlib import Path

import pytest

from grandrounds.data.datasets.published import HAM10000_CLASSES, read_ham10000
from grandrounds.data.manifest import Record
from grandrounds.data.partition.divide import by_source
from grandrounds.data.partition.files import write_partition
from grandrounds.data.partition.splits import assign_splits
from grandrounds.errors import DataError
from grandrounds.seeding import numpy_generator

METADATA = (
    "lesion_id,image_id,dx,dx_type,age,sex,localization,dataset\n"
    "HAM_1,ISIC_1,bkl,histo,80.0,male,scalp,vidir_modern\n"
    "HAM_1,ISIC_2,bkl,histo,80.0,male,scalp,vidir_modern\n"
    "HAM_2,ISIC_3,mel,histo,60.0,female,back,rosendahl\n"
)
ARCHIVE_TABLE = (
    "image,label,patient,lesion,source,dx_type\n"
    "ISIC_1.jpg,nv,,HAM_1,HAM10000/rosendahl,histo\n"
    "ISIC_2.jpg,vasc,,HAM_2,HAM10000/vienna_dias,histo\n"
)
FIRST = (("dx_type", "histo"), ("age", "80.0"), ("sex", "male"), ("localization", "scalp"))
SECOND = (("dx_type", "histo"), ("age", "60.0"), ("sex", "female"), ("localization", "back"))
RECORDS = (
    Record("p/ISIC_1.jpg", "bkl", lesion="HAM_1", source="HAM10000/vidir_modern", more=FIRST),
    Record("p/ISIC_2.jpg", "bkl", lesion="HAM_1", source="HAM10000/vidir_modern", more=FIRST),
    Record("q/ISIC_3.jpg", "mel", lesion="HAM_2", source="HAM10000/rosendahl", more=SECOND),
)


def published(root, name="HAM10000_metadata.csv", text=METADATA, images=("p/ISIC_1", "p/ISIC_2", "q/ISIC_3")):
    (root / name).write_text(text)
    for image in images:
        path = root / f"{image}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.touch()
    return root


def archive(root, text=ARCHIVE_TABLE, images=("ISIC_1.jpg", "ISIC_2.jpg")):
    (root / "ham10000_manifest.csv").write_text(text)
    with zipfile.ZipFile(root / "ham10000_200x150.zip", "w") as opened:
        for image in images:
            opened.writestr(image, b"")
    return root


@pytest.mark.parametrize("name", ["HAM10000_metadata.csv", "HAM10000_metadata"])
def test_reads_the_published_layout_in_two_folders(tmp_path, name):
    assert read_ham10000(published(tmp_path, name)) == (RECORDS, tmp_path)


def test_reads_the_published_layout_with_all_images_beside_the_table(tmp_path):
    records, root = read_ham10000(published(tmp_path, images=("ISIC_1", "ISIC_2", "ISIC_3")))
    assert root == tmp_path
    assert [record.image for record in records] == ["ISIC_1.jpg", "ISIC_2.jpg", "ISIC_3.jpg"]


def test_of_two_copies_of_a_folder_the_first_is_used(tmp_path):
    published(tmp_path)
    published(tmp_path, images=("r/ISIC_1", "r/ISIC_2", "r/ISIC_3"))
    assert read_ham10000(tmp_path) == (RECORDS, tmp_path)


def test_reads_the_table_beside_an_archive(tmp_path):
    assert read_ham10000(archive(tmp_path)) == (
        (
            Record("ISIC_1.jpg", "nv", lesion="HAM_1", source="HAM10000/rosendahl", more=FIRST[:1]),
            Record("ISIC_2.jpg", "vasc", lesion="HAM_2", source="HAM10000/vienna_dias", more=FIRST[:1]),
        ),
        tmp_path / "ham10000_200x150.zip",
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"images": ("p/ISIC_1", "q/ISIC_3")}, r"line 3: image 'ISIC_2' was looked for in .* and not found"),
        ({"text": METADATA.replace("mel", "melanoma")}, r"line 4, column dx: 'melanoma' is not one of .* 'mel'\?"),
        ({"text": METADATA.replace(",dataset", ",place")}, r"column 'dataset' is missing"),
        ({"text": METADATA.replace("ISIC_2", "ISIC_1")}, r"image 'p/ISIC_1\.jpg' is listed twice"),
    ],
)
def test_mistakes_in_the_published_layout_are_named(tmp_path, arguments, message):
    with pytest.raises(DataError, match=message):
        read_ham10000(published(tmp_path, **arguments))


def test_mistakes_in_the_archive_layout_are_named(tmp_path):
    archive(tmp_path, images=("ISIC_1.jpg",))
    with pytest.raises(DataError, match=r"line 3: image 'ISIC_2\.jpg' was looked for in .*200x150\.zip and not found"):
        read_ham10000(tmp_path)
    (tmp_path / "ham10000_200x150.zip").write_bytes(b"no archive")
    with pytest.raises(DataError, match=r"200x150\.zip.*ham10000_manifest\.csv"):
        read_ham10000(tmp_path)
    (tmp_path / "ham10000_200x150.zip").unlink()
    with pytest.raises(DataError, match=r"cannot be read: .*No such file"):
        read_ham10000(tmp_path)


@pytest.fixture(scope="module")
def ham10000():
    folder = os.environ.get("GRANDROUNDS_DATA")
    data = Path(folder) if folder else Path(__file__).parents[6] / "shared" / "data"
    if not (data / "ham10000").is_dir():
        pytest.skip(f"no HAM10000 in {data}; set GRANDROUNDS_DATA")
    return read_ham10000(data / "ham10000")


# Images per class, in the order of HAM10000_CLASSES.
PUBLISHED_COUNTS = {
    "HAM10000/rosendahl": [295, 296, 490, 30, 342, 803, 3],
    "HAM10000/vidir_modern": [32, 211, 475, 51, 680, 1832, 82],
    "HAM10000/vidir_molemax": [0, 2, 124, 30, 24, 3720, 54],
    "HAM10000/vienna_dias": [0, 5, 10, 4, 67, 350, 3],
}


@pytest.mark.realdata
def test_the_real_data_set_has_the_published_counts(ham10000):
    records, root = ham10000
    assert len(records) == 10015
    assert len({record.lesion for record in records}) == 7470
    assert root.is_file()
    counts = Counter((record.source, record.label) for record in records)
    assert {source: [counts[source, name] for name in HAM10000_CLASSES] for source in PUBLISHED_COUNTS} == (
        PUBLISHED_COUNTS
    )


def ten_sites(ham10000, out_dir):
    records, root = ham10000
    sites = {
        site: assign_splits(own, numpy_generator(0, "splits", site), site=site)
        for site, own in by_source(records, 10, numpy_generator(0, "by_source")).items()
    }
    return sites, write_partition(sites, out_dir, "skin", root, HAM10000_CLASSES, {"scheme": "by_source", "seed": 0})


@pytest.mark.realdata
def test_ten_real_sites_follow_the_devices_and_share_no_lesion(ham10000, tmp_path):
    sites, first = ten_sites(ham10000, tmp_path / "a")
    majority = [Counter(record.source for record in own).most_common(1)[0][0] for own in sites.values()]
    assert list(Counter(majority).items()) == [
        ("HAM10000/rosendahl", 2),
        ("HAM10000/vidir_modern", 3),
        ("HAM10000/vidir_molemax", 4),
        ("HAM10000/vienna_dias", 1),
    ]
    assert len({(record.lesion, site) for site, own in sites.items() for record in own}) == 7470
    assert sum(len(own) for own in sites.values()) == 10015
    assert first["sites"]["site-10"]["images"] == {"train": 220, "val": 55, "test": 164}
    _, second = ten_sites(ham10000, tmp_path / "b")
    assert {site: summary["sha256"] for site, summary in first["sites"].items()} == {
        site: summary["sha256"] for site, summary in second["sites"].items()
    }
