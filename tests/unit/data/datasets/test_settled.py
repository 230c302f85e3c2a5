"""Every way into a partition gives classes, sites, patients and lesions one key, or asks."""

import re
import unicodedata

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from grandrounds.api.sites import Sites
from grandrounds.data.manifest import read_manifest
from grandrounds.errors import ConfigurationError, DataError

NAMES = [f"i{number}.png" for number in range(24)]


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    for number, name in enumerate(NAMES):
        pixels = np.random.default_rng(number).integers(0, 255, (8, 8, 3), np.uint8)
        Image.fromarray(pixels).save(folder / name)
    return folder


def _csv(frame, place):
    frame.to_csv(place / "t.csv", index=False, na_rep="")
    return place / "t.csv"


def _parquet(frame, place):
    frame.to_parquet(place / "t.parquet")
    return place / "t.parquet"


@pytest.fixture(params=[_csv, _parquet], ids=["csv", "parquet"])
def sites_of(request, images, tmp_path):
    def make(columns, **options):
        frame = pd.DataFrame({"image": NAMES, "label": ["a", "b"] * 12, **columns})
        return Sites.from_manifest(
            request.param(frame, tmp_path), images, tmp_path / "out", sites=2, warn=False, **options
        )

    return make


def records_of(sites):
    return [record for site in sites.names for record in read_manifest(sites.folder / site / "manifest.csv")]


TWICE = [f"{number // 2}" for number in range(24)]


@pytest.mark.parametrize(
    ("kind", "columns", "spelled"),
    [
        ("label", {"label": ["Nevus", "b", "nevus", "b"] * 6}, ("Nevus", "nevus")),
        ("label", {"label": ["1", "b", "1.0", "b"] * 6}, ("1", "1.0")),
        ("patient", {"patient": [n if i % 2 else n.zfill(3) for i, n in enumerate(TWICE)]}, ("000", "0")),
        ("patient", {"patient": [f"P{n}" if i % 2 else f"p{n}" for i, n in enumerate(TWICE)]}, ("p0", "P0")),
        (
            "lesion",
            {"label": list("aabb") * 6, "lesion": [n if i % 2 else f"{n},0" for i, n in enumerate(TWICE)]},
            ("0", "0,0"),
        ),
        ("site", {"site": (["Köln"] * 4 + ["köln"] * 4 + ["Bonn"] * 4) * 2}, ("Köln", "köln")),
    ],
)
def test_near_names_are_refused_and_the_options_of_the_refusal_work(sites_of, kind, columns, spelled):
    with pytest.raises(DataError) as refusal:
        sites_of(columns)
    for part in (*map(repr, spelled), f"--merge {kind}", f"--distinct {kind}"):
        assert part in str(refusal.value)
    merged = sites_of(columns, merge=[kind])
    assert kind in merged.description["keys"]
    assert any(kind in remark for remark in merged.remarks)
    if kind in ("label", "patient", "lesion"):
        assert len({getattr(record, kind) for record in records_of(merged)}) == (2 if kind == "label" else 12)


def test_names_that_are_different_on_purpose_stay(sites_of):
    hashes = [f"{number // 2:04d}" if number % 2 else f"{number // 2}" for number in range(24)]
    sites = sites_of({"patient": hashes}, distinct=["patient"])
    assert {record.patient for record in records_of(sites)} == set(hashes)
    assert sites.description["keys"] == {"distinct": ["patient"]}


@pytest.mark.parametrize("missing", ["nan", "NULL", "<NA>"])
def test_missing_values_are_missing(sites_of, missing):
    labels = [missing if number % 6 == 0 else "ab"[number % 2] for number in range(24)]
    patients = [missing if number % 8 == 0 else f"p{number}" for number in range(24)]
    sites = sites_of({"label": labels, "patient": patients})
    found = records_of(sites)
    assert sites.description["classes"] == ["a", "b"]
    assert sum(record.label == "" for record in found) == 4
    assert sum(record.patient == "" for record in found) == 3
    assert any("i0.png, i8.png, i16.png" in remark for remark in sites.remarks)


def test_a_word_that_may_be_a_class_is_asked_about_and_both_answers_work(sites_of):
    labels = {"label": ["none" if number % 6 == 0 else "ab"[number % 2] for number in range(24)]}
    with pytest.raises(DataError, match=r"'none' \(4 images\)"):
        sites_of(labels)
    assert sites_of(labels, distinct=["label:none"]).description["classes"] == ["a", "b", "none"]
    assert sites_of(labels, merge=["label:none="], overwrite=True).description["classes"] == ["a", "b"]


@pytest.mark.parametrize(
    "word",
    [
        "missing",
        "Unk.",
        "keine Angabe",
        "k.A.",
        "k/a",
        "n.b.",
        "nicht beurteilbar",
        "non renseigné",
        "not available",
        "TBD",
        "-999",
        "9999",
        "-1",
        "-9.0",
    ],
)
def test_further_words_for_what_is_not_known_are_asked_about_and_both_answers_work(sites_of, word):
    labels = {"label": [word if number % 6 == 0 else "01"[number % 2] for number in range(24)]}
    with pytest.raises(DataError, match=rf"label '{re.escape(word)}' \(4 images\) may be a class or a missing label"):
        sites_of(labels)
    assert sites_of(labels, merge=[f"label:{word}="]).description["classes"] == ["0", "1"]
    distinct = sites_of(labels, distinct=[f"label:{word}"], overwrite=True)
    assert {*distinct.description["classes"]} == {"0", "1", word}


@pytest.mark.parametrize(
    "labels",
    [
        ["98", "99"],
        ["98.0", "99.0"],
        ["-2", "-1"],
        ["-1", "1"],
        ["0", "1+"],
        ["not known to us", "b"],
        ["KA", "SCC"],
        ["undetermined", "benign"],
        ["MAR 1", "b"],
        ["May 1", "b"],
        ["head", "neck", "head and neck"],
    ],
)
def test_numbers_of_a_scale_and_ordinary_names_are_not_asked_about(sites_of, labels):
    assert {*sites_of({"label": labels * (24 // len(labels))}).description["classes"]} == {*labels}


@pytest.mark.parametrize("date", ["2020-03-02", "2-Mar", "02. Mrz", "2. März"])
def test_a_date_among_other_labels_is_asked_about(sites_of, date):
    labels = {"label": [date, "4-5", "10-12"] * 8}
    with pytest.raises(DataError, match=rf"label '{re.escape(date)}' \(8 images\) is a date, as spreadsheets make"):
        sites_of(labels)
    assert date in sites_of(labels, distinct=[f"label:{date}"]).description["classes"]
    merged = sites_of(labels, merge=[f"label:{date}="], overwrite=True)
    assert {*merged.description["classes"]} == {"4-5", "10-12"}


@pytest.mark.parametrize(
    "labels", [["2019-01-01", "2020-01-01"], ["May", "June"], ["2 marks", "3 marks"], ["4-5", "2-3"]]
)
def test_what_is_no_date_or_all_dates_is_not_asked_about(sites_of, labels):
    assert {*sites_of({"label": labels * 12}).description["classes"]} == {*labels}


@pytest.mark.parametrize("heading", ["fold", "is_test", "IsTrain", "cv_fold", "test"])
def test_a_column_called_after_splits_that_is_not_used_is_named(sites_of, heading):
    sites = sites_of({heading: [number % 2 for number in range(24)]})
    assert f"column {heading} may be a split and is not used" in sites.description["import"]["notes"][0]
    named = sites_of({heading: ["x"] * 24, "split": ["train", "train", "val", "test"] * 6}, overwrite=True)
    assert not any("may be a split" in note for note in named.description["import"].get("notes", []))


def test_a_column_whose_name_only_mentions_a_test_is_not_named(sites_of):
    notes = sites_of({"test_result": [number % 2 for number in range(24)]}).description["import"].get("notes", [])
    assert not any("split" in note for note in notes)


@pytest.mark.parametrize(
    ("heading", "values"),
    [("phase", ["1", "2"]), ("set", ["0", "1"]), ("test", ["MRI", "CT"]), ("fold", ["0", "21"])],
)
def test_a_column_of_other_values_or_of_a_heading_of_many_meanings_is_not_named(sites_of, heading, values):
    notes = sites_of({heading: values * 12}).description["import"].get("notes", [])
    assert not any("split" in note for note in notes)


def test_a_choice_about_a_name_that_does_not_occur_is_refused(sites_of):
    with pytest.raises(ConfigurationError, match="label:c"):
        sites_of({}, merge=["label:c=a"])


@pytest.mark.parametrize("separator", [";", ", ", " / ", "+", "&", "\n"])
def test_findings_that_are_joined_otherwise_are_refused_by_name(sites_of, separator):
    joined = f"effusion{separator}mass"
    labels = {"label": ["effusion", "mass", joined, "none"] * 6}
    with pytest.raises(DataError, match=r"effusion\|mass"):
        sites_of(labels, task="multi")
    sites = sites_of({"label": [label.replace(joined, "effusion|mass") for label in labels["label"]]}, task="multi")
    assert sites.description["classes"] == ["effusion", "mass"]


def test_parts_that_several_joined_findings_share_are_findings(sites_of):
    with pytest.raises(DataError, match=r"effusion\|mass"):
        sites_of({"label": ["effusion;mass", "effusion;nodule", "mass;nodule", "none"] * 6}, task="multi")


def test_a_class_made_of_classes_is_refused_for_one_class_too(sites_of):
    labels = {"label": ["benign", "malignant", "benign/malignant"] * 8}
    with pytest.raises(DataError, match="task multi"):
        sites_of(labels)
    assert len(sites_of(labels, distinct=["label:benign/malignant"]).description["classes"]) == 3


def test_names_with_a_separator_that_are_nothing_else_stay(sites_of):
    labels = ["BI-RADS 3/4", "grade 2; mixed"] * 12
    assert sites_of({"label": labels}).description["classes"] == ["BI-RADS 3/4", "grade 2; mixed"]


def folder_of(place, sites, labels, count=8):
    for number, (site, label) in enumerate((site, label) for site in sites for label in labels):
        for index in range(count):
            path = place / site / label / f"P{index:03d}_.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.random.default_rng([number, index]).integers(0, 255, (8, 8, 3), np.uint8)).save(path)
    return place


@pytest.mark.parametrize("label", ["missing", "pending", "-1", "2-Mar"])
def test_a_folder_is_not_called_by_mistake(tmp_path, label):
    root = folder_of(tmp_path / "in", ["Leeds", "York"], ["nevus", label])
    sites = Sites.from_folders(root, tmp_path / "out", layout="site/class", patient_pattern="(P[0-9]+)_")
    assert {*sites.description["classes"]} == {"nevus", label}


def test_folders_whose_names_look_alike_are_one_class_and_sites_keep_their_names(tmp_path):
    for site, form in (("Köln", "NFC"), ("Zürich", "NFD")):
        folder_of(tmp_path / "im", [site], [unicodedata.normalize(form, "nävus"), "melanom"])
    sites = Sites.from_folders(tmp_path / "im", tmp_path / "out", patient_pattern="(P[0-9]+)_")
    assert sites.description["classes"] == ["melanom", "nävus"]
    assert sorted(sites.description["site_names"].values()) == ["Köln", "Zürich"]
    assert set(sites.description["site_names"]) == set(sites.names)
    assert {record.patient.partition("/")[0] for record in records_of(sites)} == {"Köln", "Zürich"}


def test_patients_of_one_name_in_the_folders_of_two_sites_are_remarked_on(tmp_path):
    root = folder_of(tmp_path / "in", ("Leeds", "York"), ("nevus", "melanoma"))
    sites = Sites.from_folders(root, tmp_path / "out", patient_pattern=r"([^/]+)\.png")
    assert any(remark.startswith("8 names of patients occur at several sites") for remark in sites.remarks)


def test_a_site_called_as_the_server_or_a_file_of_the_partition_keeps_its_images(tmp_path):
    names = ("server", "partition.json", "x" * 200)
    root = folder_of(tmp_path / "in", names, ("nevus", "melanoma"))
    sites = Sites.from_folders(root, tmp_path / "out", patient_pattern=r"([^/]+/[^/]+)\.png")
    assert sorted(sites.description["site_names"].values()) == sorted(names)
    assert sorted(sites.description["site_names"]) == sorted(sites.names)


def test_a_site_called_as_a_row_of_a_table_of_scores_is_shown_by_its_id(tmp_path):
    root = folder_of(tmp_path / "in", ("pooled", "mean", "Köln"), ("nevus", "melanoma"))
    sites = Sites.from_folders(root, tmp_path / "out", patient_pattern=r"([^/]+/[^/]+)\.png")
    assert not {"pooled", "mean"} & {*sites.names}
    assert [*sites.description["site_names"].values()] == ["Köln"]


def test_site_folders_that_are_near_are_refused(tmp_path):
    root = folder_of(tmp_path / "im", ["Köln", "KÖln", "Käln"], ["a", "b"])
    with pytest.raises(DataError, match="'KÖln' and 'Köln'"):
        Sites.from_folders(root, tmp_path / "out", patient_pattern="(P[0-9]+)_")
    sites = Sites.from_folders(root, tmp_path / "out", patient_pattern="(P[0-9]+)_", distinct=["site"])
    assert len(sites.names) == 3


def test_a_missing_site_is_refused_with_the_way_to_keep_its_name(sites_of):
    column = {"site": (["Leeds"] * 4 + ["NA"] * 4) * 3}
    with pytest.raises(DataError, match="--distinct site:NA"):
        sites_of(column)
    assert set(sites_of(column, distinct=["site:NA"]).names) == {"Leeds", "NA"}


@pytest.mark.parametrize(("form", "told"), [("1,{:02d}E+11", 1), ("{}e10", 0), ("1.{:02d}e+11", 1), ("{}E-5", 0)])
def test_numbers_that_a_spreadsheet_has_shortened_are_told(sites_of, form, told):
    sites = sites_of({"patient": [form.format(number) if number < 6 else f"P{number}" for number in range(24)]})
    expected = "6 names of patients are numbers that a spreadsheet has shortened"
    assert sum(one.startswith(expected) for one in sites.remarks) == told


def test_patients_at_two_sites_are_counted_and_named_by_the_tables_words_and_rows(sites_of):
    columns = {"patient": TWICE, "site": ["Köln", "Leipzig", *["Köln"] * 4, "Köln", "Leipzig", *["Leipzig"] * 16]}
    expected = (
        r"2 patients at several sites, first '0': Köln \(line [12]\), Leipzig \(line [23]\); .* or add --scheme iid"
    )
    with pytest.raises(DataError, match=expected):
        sites_of(columns)
    assert len(sites_of(columns, scheme="iid").names) == 2
    lesion = dict(columns, lesion=["x" if n in (0, 8) else f"l{n}" for n in range(24)], patient=[""] * 24)
    with pytest.raises(
        DataError, match=r"1 lesion at several sites, first 'x': Köln \(line \d+\), Leipzig \(line \d+\)"
    ):
        sites_of(lesion)
