"""Partitions of benign and malignant images, from published folders to what a site trains on."""

import csv
import json
from collections import Counter

import numpy as np
import pytest
from published_data.mammography.records import Mammogram, to_records, vocabulary

from grandrounds.data.datasets.published import HAM10000_MALIGNANCY, MALIGNANCY_CLASSES
from grandrounds.data.partition.schemes import make_partition
from grandrounds.data.site import load_site_data, locate_dataset
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.protocol.problem import Problem


def rows_of(out, site):
    with (out / site / "manifest.csv").open() as stream:
        return list(csv.DictReader(stream))


def splits_of(rows):
    return Counter((row["label"], row["split"]) for row in rows)


@pytest.fixture
def mias(mini_mias, tmp_path):
    """Sixty films of thirty patients, every third of them with cancer."""
    (tmp_path / "mini_mias").mkdir()
    severity = ("M 5 5 5", "B 5 5 5", "")
    rows = [
        f"mdb{number:03d} G {'CIRC' if severity[(number - 1) // 2 % 3] else 'NORM'} {severity[(number - 1) // 2 % 3]}"
        for number in range(1, 61)
    ]
    return mini_mias(tmp_path / "mini_mias", rows)


def test_simulated_vendors_are_the_sites_and_are_cropped_there(mias, tmp_path):
    out = tmp_path / "out"
    films = tmp_path / "films"
    description = make_partition("mini_mias", mias, out, simulated_vendors=films)
    assert (description["dataset_name"], description["preprocess"]) == ("mammograms", "mammogram")
    assert description["mini_mias_simulated_vendors"] is True
    assert description["classes"] == ["benign", "malignant"]
    assert [list(site["sources"]) for site in description["sites"].values()] == [
        [f"mini-MIAS/simulated-{number}"] for number in (1, 2, 3)
    ]
    entry = json.loads((out / "site-1" / "grandrounds.json").read_text())["datasets"]["mammograms"]
    assert entry["preprocess"] == "mammogram"
    location = locate_dataset("site-1", "mammograms", [out])
    data = load_site_data(location, Problem("mammograms", MALIGNANCY_CLASSES, 32, 1), tmp_path / "cache")
    assert data.images.shape == (20, 32, 32, 1)
    assert (data.images[:, :, :8].sum(axis=(1, 2, 3)) > data.images[:, :, -8:].sum(axis=(1, 2, 3))).all()
    assert all(data.class_counts(part).min() > 0 for part in ("labelled", "val", "test"))


def test_splits_are_by_patient_and_class(mias, tmp_path):
    make_partition("mini_mias", mias, tmp_path / "out", scheme="iid", sites=2)
    for site in ("site-1", "site-2"):
        rows = rows_of(tmp_path / "out", site)
        assert all(splits_of(rows)["malignant", split] for split in ("train", "val", "test"))
        of_patient = {}
        for row in rows:
            assert of_patient.setdefault(row["patient"], row["split"]) == row["split"]
        assert all(row["labelled"] == "1" for row in rows)


@pytest.mark.parametrize(
    ("normals", "expected"),
    [
        ("benign", {"benign": 40, "malignant": 20}),
        ("class", {"normal": 20, "benign": 20, "malignant": 20}),
        ("drop", {"benign": 20, "malignant": 20}),
    ],
)
def test_images_without_a_finding_count_as_chosen(mias, tmp_path, normals, expected):
    description = make_partition("mini_mias", mias, tmp_path / "out", sites=1, normals=normals)
    assert description["sites"]["site-1"]["classes"] == expected
    assert description["normals"] == normals


@pytest.fixture
def collection(inbreast, cbis_ddsm, cmmd, mias, tmp_path):
    folders = {name: tmp_path / name for name in ("inbreast", "cbis_ddsm", "cmmd")}
    for folder in folders.values():
        folder.mkdir()
    inbreast(folders["inbreast"], [(f"{i}", f"p{i}", "L", "CC", "126"[i % 3]) for i in range(30)])
    cbis_ddsm(
        folders["cbis_ddsm"],
        [
            ("mass_test" if i < 6 else "mass_train", f"P_{i}", "LEFT", "CC", ("BENIGN", "MALIGNANT")[i % 2])
            for i in range(30)
        ]
        + [("calc_train", "P_100", "LEFT", "CC", "BENIGN"), ("calc_test", "P_101", "LEFT", "CC", "BENIGN")],
    )
    cmmd(
        folders["cmmd"],
        [(f"D1-{i:04d}", "R", ("Benign", "Malignant")[i % 2]) for i in range(30)],
        [(f"D1-{i:04d}", "R", "CC", "GE MEDICAL SYSTEMS") for i in range(30)],
    )
    return tmp_path


def test_several_data_sets_are_one_and_each_vendor_a_site(collection, tmp_path):
    out = tmp_path / "out"
    description = make_partition("mammograms", collection, out, sites=4)
    assert [site["sources"] for site in description["sites"].values()] == [
        {"CBIS-DDSM/film": 32},
        {"CMMD/GE": 30},
        {"INbreast/Siemens": 30},
        {"mini-MIAS/film": 60},
    ]
    assert description["cbis_ddsm_patients_in_both"] == 0
    assert description["cmmd_without_label"] == 0
    images = [row["image"].split("/")[0] for row in rows_of(out, "site-3")]
    assert set(images) == {"inbreast"}
    data = load_site_data(
        locate_dataset("site-2", "mammograms", [out]),
        Problem("mammograms", MALIGNANCY_CLASSES, 16, 1),
        tmp_path / "cache",
    )
    assert not data.cache.quarantined
    assert data.images.reshape(30, -1).max(axis=1).tolist() == [255] * 30


@pytest.mark.parametrize("normals", ["benign", "class", "drop"])
def test_a_collection_treats_images_without_a_finding_as_chosen(collection, tmp_path, normals):
    made = make_partition("mammograms", collection, tmp_path / "out", scheme="iid", sites=1, normals=normals)
    found = made["sites"]["site-1"]["classes"]
    # Without a finding: ten of INbreast (BI-RADS 1) and twenty of mini-MIAS; none of CBIS-DDSM and CMMD.
    assert found.get("normal", 0) == (30 if normals == "class" else 0)
    assert sum(found.values()) == (152 - 30 if normals == "drop" else 152)


def test_fewer_sites_than_vendors_are_refused(collection, tmp_path):
    with pytest.raises(DataError, match="3 sites cannot hold 4 sources"):
        make_partition("mammograms", collection, tmp_path / "out")


def test_the_published_test_set_is_kept(collection, tmp_path):
    description = make_partition("cbis_ddsm", collection / "cbis_ddsm", tmp_path / "out", sites=1, published_test=True)
    rows = rows_of(tmp_path / "out", "site-1")
    assert {row["patient"] for row in rows if row["split"] == "test"} == {
        f"CBIS-DDSM/P_{number}" for number in (*range(6), 101)
    }
    assert description["cbis_ddsm_published_test"] is True
    drawn = make_partition("cbis_ddsm", collection / "cbis_ddsm", tmp_path / "drawn", sites=1)
    assert drawn["sites"]["site-1"]["images"]["test"] == pytest.approx(0.2 * 32, abs=1)


def test_ham10000_is_benign_or_malignant(ham10000, tmp_path):
    (tmp_path / "ham").mkdir()
    names = list(HAM10000_MALIGNANCY)
    ham10000(tmp_path / "ham", [(f"HAM_{i // 2}", f"ISIC_{i}", names[i // 2 % 7]) for i in range(140)])
    description = make_partition("ham10000_malignancy", tmp_path / "ham", tmp_path / "out", sites=1)
    assert description["dataset_name"] == "skin_malignancy"
    assert "preprocess" not in description
    # Of seven classes akiec, bcc and mel are malignant: 20 images of each.
    assert description["sites"]["site-1"]["classes"] == {"benign": 80, "malignant": 60}
    rows = rows_of(tmp_path / "out", "site-1")
    assert len({(row["lesion"], row["split"]) for row in rows}) == 70


@pytest.mark.realdata
def test_each_device_of_ham10000_has_cancer_in_every_split(realdata, tmp_path):
    description = make_partition("ham10000_malignancy", realdata / "ham10000", tmp_path / "out")
    malignant = {site: found["classes"]["malignant"] for site, found in description["sites"].items()}
    # rosendahl, vidir_modern, vidir_molemax, vienna_dias; lesions seen by two devices go with most of their images.
    assert malignant == pytest.approx({"site-1": 933, "site-2": 923, "site-3": 26, "site-4": 72}, abs=10)
    for site in description["sites"]:
        found = splits_of(rows_of(tmp_path / "out", site))
        assert all(found["malignant", split] for split in ("train", "val", "test"))


@pytest.mark.parametrize(
    ("dataset", "choices", "message"),
    [
        ("cmmd", {"simulated_vendors": "films"}, "data set cmmd has no option simulated_vendors"),
        ("mini_mias", {"birads_3": "drop"}, "data set mini_mias has no option birads_3"),
        ("cbis_ddsm", {"normals": "drop"}, "data set cbis_ddsm has no option normals"),
        ("cmmd", {"normals": "class"}, "data set cmmd has no option normals"),
        ("inbreast", {"normals": "all"}, "normals must be benign, class or drop, got 'all'"),
        ("inbreast", {"preprocess": "mammogram"}, "data set inbreast has no option preprocess"),
        ("cbis_ddsm", {"published_test": True, "test": 0.3}, "published_test defines the test images"),
    ],
)
def test_choices_without_effect_are_refused(tmp_path, dataset, choices, message):
    with pytest.raises(ConfigurationError, match=message):
        make_partition(dataset, tmp_path, tmp_path / "out", **choices)


def test_any_mammograms_with_a_manifest(mias, tmp_path):
    table = "image,label,split,patient\n" + "".join(
        f"mdb{number:03d}.pgm,{'ab'[number % 2]},train,p{number}\n" for number in range(1, 61)
    )
    (tmp_path / "all.csv").write_text(table)
    options = {"manifest": tmp_path / "all.csv", "dataset_name": "breast"}
    description = make_partition(
        "manifest", mias, tmp_path / "out", scheme="iid", sites=2, preprocess="mammogram", **options
    )
    assert description["preprocess"] == "mammogram"
    assert locate_dataset("site-1", "breast", [tmp_path / "out"]).reading.preprocess == "mammogram"
    with pytest.raises(ConfigurationError, match=r"preprocess .*got 'crop'"):
        make_partition("manifest", mias, tmp_path / "other", scheme="iid", sites=2, preprocess="crop", **options)


def test_patients_of_different_data_sets_are_different():
    records = [to_records([Mammogram("a", "benign", "1")], name)[0] for name in ("CMMD", "INbreast")]
    assert len({record.patient for record in records}) == 2
    assert vocabulary("class") == ("normal", "benign", "malignant")
    assert np.unique([record.source for record in records]).tolist() == ["CMMD/unknown", "INbreast/unknown"]
