"""A hospital's own manifest: its names are keys, near ones are refused, and its grandrounds.json says which they are."""

import json
import unicodedata

import numpy as np
import pytest
from PIL import Image

from grandrounds.data.manifest import Record, read_manifest
from grandrounds.data.partition.files import read_partition, write_partition
from grandrounds.data.site import load_site_data, read_site_config
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.protocol.problem import Problem

HEADER = "image,label,split,patient,lesion,source\n"


@pytest.fixture
def hospital(tmp_path):
    """Data of a site from rows of a manifest and further entries of its configuration."""

    def make(rows, classes=("a", "b"), **entries):
        for row in rows:
            pixels = np.random.default_rng(len(row[0])).integers(0, 255, (8, 8, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / row[0])
        (tmp_path / "m.csv").write_text(HEADER + "".join(",".join(row) + "\n" for row in rows), encoding="utf-8")
        entry = {"manifest": "m.csv", "root": ".", **entries}
        (tmp_path / "grandrounds.json").write_text(json.dumps({"datasets": {"x": entry}}))
        location = read_site_config(tmp_path / "grandrounds.json")["x"]
        return load_site_data(location, Problem("skin", classes, 8), tmp_path / "cache")

    return make


def test_missing_values_are_no_patients_and_no_labels(hospital):
    data = hospital(
        [
            ("0.png", "a", "train", "nan", "", "NULL"),
            ("1.png", "NaN", "train", "p1", "<NA>", ""),
            ("2.png", "b", "train", "none", "", ""),
        ]
    )
    assert data.patients == ("", "p1", "")
    assert data.groups == ("0.png", "p1", "2.png")
    assert data.labels.tolist() == [0, -1, 1]


def test_a_class_is_matched_by_its_canonical_text(hospital):
    rows = [
        ("0.png", unicodedata.normalize("NFD", "nävus"), "train", "p", "", ""),
        ("1.png", "b", "train", "q", "", ""),
    ]
    assert hospital(rows, classes=("b", "nävus")).labels.tolist() == [1, 0]
    with pytest.raises(DataError, match="did you mean 'nävus'"):
        hospital([("0.png", "Nävus", "train", "p", "", "")], classes=("b", "nävus"))
    merged = hospital([("0.png", "Nävus", "train", "p", "", "")], classes=("b", "nävus"), merge=["label:Nävus=nävus"])
    assert merged.labels.tolist() == [1]


@pytest.mark.parametrize(("column", "place"), [("patient", 3), ("lesion", 4)])
def test_near_patients_and_lesions_are_refused_until_the_site_says_what_they_are(hospital, column, place):
    rows = [["0.png", "a", "train", "", "", ""], ["1.png", "b", "test", "", "", ""]]
    rows[0][place], rows[1][place] = "007", "7"
    with pytest.raises(DataError, match="'007' and '7'") as refusal:
        hospital(rows)
    assert f'"distinct": ["{column}"]' in str(refusal.value)
    assert hospital(rows, distinct=[column]).groups == ("007", "7")
    rows[1][2] = "train"
    assert hospital(rows, merge=[column]).groups == ("007", "007")


def test_one_patient_in_two_spellings_is_in_two_splits(hospital):
    rows = [("0.png", "a", "train", "7", "", ""), ("1.png", "b", "test", "7.0", "", "")]
    with pytest.raises(DataError, match="'7' is in two splits"):
        hospital(rows, merge=["patient"])
    composed = [("0.png", "a", "train", "Jäger", "", ""), ("1.png", "b", "test", "Ja\u0308ger", "", "")]
    with pytest.raises(DataError, match="'Jäger' is in two splits"):
        hospital(composed)


@pytest.mark.parametrize("entry", [{"merge": "patient"}, {"distinct": [7]}, {"merge": ["people"]}])
def test_a_wrong_entry_is_refused_by_its_name(hospital, entry):
    with pytest.raises(ConfigurationError, match=f"datasets.x.*{next(iter(entry))}"):
        hospital([("0.png", "a", "train", "7", "", "")], **entry)


def partition(place, classes=("a", "b"), **description):
    records = [Record("0.png", classes[0], "train", "007"), Record("1.png", classes[1], "train", "7")]
    return write_partition({"site-1": records}, place, "x", place, classes, description)


def test_a_partition_states_the_rule_and_another_one_is_refused(tmp_path):
    assert partition(tmp_path / "p")["key_rule"] == 1
    path = tmp_path / "p/partition.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "key_rule": 2}))
    with pytest.raises(DataError, match=r"rule 2.*partition again"):
        read_partition(tmp_path / "p")
    del content["key_rule"]
    path.write_text(json.dumps(content))
    assert read_partition(tmp_path / "p")["classes"] == ["a", "b"]
    path.write_text(json.dumps({**content, "classes": ["na\u0308vus", "b"]}))
    with pytest.raises(DataError, match="partition again"):
        read_partition(tmp_path / "p")


def test_sites_of_a_partition_know_which_patients_are_different(tmp_path):
    partition(tmp_path / "p", keys={"distinct": ["patient", "label:a"]})
    location = read_site_config(tmp_path / "p/site-1/grandrounds.json")["x"]
    assert [one.patient for one in read_manifest(location.manifest, choices=location.keys)] == ["007", "7"]
