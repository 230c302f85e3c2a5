"""RSNA-ICH from its published layout to clients, by patient or by slice; no patient is ever in two splits."""

import csv
import json
from collections import Counter, defaultdict

import numpy as np
import pytest
from published_data.rsna_ich import RSNA_ICH_CLASSES, CtOptions, draw_slices, read_rsna_ich

from grandrounds.data.manifest import Record
from grandrounds.data.partition.files import write_partition
from grandrounds.data.partition.schemes import make_partition
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.seeding import numpy_generator

ROWS = [
    ("ID_1", ["subdural"], "ID_p"),
    ("ID_2", [], "ID_p"),
    ("ID_3", ["epidural", "subdural"], "ID_q"),
    ("ID_4", ["epidural"], "ID_q"),
]


def generator():
    return numpy_generator("test")


@pytest.mark.parametrize("folder", ["stage_2_train", "stage_2_train_images"])
def test_reads_the_published_layout(tmp_path, rsna_ich, folder):
    records, counts = read_rsna_ich(rsna_ich(tmp_path, ROWS, folder), CtOptions(slices=2))
    assert records == (
        Record(f"{folder}/ID_1.dcm", "subdural", patient="ID_p", source="RSNA-ICH"),
        Record(f"{folder}/ID_4.dcm", "epidural", patient="ID_q", source="RSNA-ICH"),
    )
    assert counts == {"without_subtype": 1, "several_subtypes": 1}


def test_slices_with_several_subtypes_can_count_as_of_the_first(tmp_path, rsna_ich):
    records, _ = read_rsna_ich(rsna_ich(tmp_path, ROWS), CtOptions(several="first", slices=3))
    assert [(record.image[-8:-4], record.label) for record in records] == [
        ("ID_1", "subdural"),
        ("ID_3", "epidural"),
        ("ID_4", "epidural"),
    ]


def test_all_subtypes_can_be_kept_as_findings(tmp_path, rsna_ich):
    root, options = rsna_ich(tmp_path, ROWS), CtOptions(several="keep", slices=3)
    (root / "stage_2_train" / "ID_2.dcm").rename(tmp_path / "away.dcm")
    labels = {"ID_1": "subdural|any", "ID_3": "epidural|subdural|any", "ID_4": "epidural|any"}
    assert {record.image[-8:-4]: record.label for record in read_rsna_ich(root, options)[0]} == labels
    (tmp_path / "away.dcm").rename(root / "stage_2_train" / "ID_2.dcm")
    found = read_rsna_ich(root, CtOptions(several="keep", slices=4))[0]
    assert {record.image[-8:-4]: record.label for record in found} == labels | {"ID_2": "none"}


def test_slices_without_a_subtype_need_not_be_there(tmp_path, rsna_ich):
    root = rsna_ich(tmp_path, ROWS)
    (root / "stage_2_train" / "ID_2.dcm").unlink()
    assert len(read_rsna_ich(root, CtOptions(slices=2))[0]) == 2
    (root / "stage_2_train" / "ID_4.dcm").unlink()
    with pytest.raises(DataError, match=r"stage_2_train\.csv.*'ID_4'"):
        read_rsna_ich(root, CtOptions(slices=2))


def test_a_layout_that_is_not_there_is_named(tmp_path, rsna_ich):
    with pytest.raises(DataError, match=r"looked.*stage_2_train\.csv"):
        read_rsna_ich(tmp_path, CtOptions())
    root = rsna_ich(tmp_path, ROWS, "images")
    with pytest.raises(DataError, match="stage_2_train, stage_2_train_images"):
        read_rsna_ich(root, CtOptions())


def test_more_slices_than_there_are_cannot_be_drawn(tmp_path, rsna_ich):
    root = rsna_ich(tmp_path, ROWS)
    with pytest.raises(DataError, match="2 slices with exactly one subtype, asked for 25000; ask for fewer slices"):
        read_rsna_ich(root, CtOptions())
    with pytest.raises(DataError, match="3 slices with a subtype, asked for 4"):
        read_rsna_ich(root, CtOptions(several="first", slices=4))


def test_patients_are_drawn_whole_but_for_the_last_one():
    records = [Record(f"{i}", "subdural", patient=f"p{i % 20}") for i in range(100)]
    drawn = draw_slices(records, 42, np.random.default_rng(3))
    assert len(drawn) == 42
    assert list(drawn) == sorted(drawn, key=lambda record: int(record.image))
    assert sorted(Counter(record.patient for record in drawn).values()) == [2, 5, 5, 5, 5, 5, 5, 5, 5]
    assert drawn == draw_slices(records, 42, np.random.default_rng(3))
    assert drawn != draw_slices(records, 42, np.random.default_rng(4))
    assert draw_slices(records, 100, np.random.default_rng(3)) == tuple(records)


@pytest.fixture
def root(tmp_path, rsna_ich):
    """120 slices with one subtype of 40 patients, and 10 without any."""
    rows = [(f"ID_{i}", [RSNA_ICH_CLASSES[i % 5]], f"ID_p{i % 40}") for i in range(120)]
    return rsna_ich(tmp_path / "root", rows + [(f"ID_n{i}", [], f"ID_p{i}") for i in range(10)])


FEDIRM = {"validation": 0.1, "test": 0.2, "scenario": "few_labels", "labelled_sites": ["site-1", "site-2"]}


def rows_of(out):
    return {
        place.parent.name: list(csv.DictReader(place.read_text().splitlines())) for place in out.glob("*/manifest.csv")
    }


def test_a_partition_records_the_choices_and_every_site_gets_the_windows(root, tmp_path):
    description = make_partition("rsna_ich", root, tmp_path / "out", sites=4, slices=100, **FEDIRM)
    expected = {
        "dataset": "rsna_ich",
        "dataset_name": "ich",
        "scheme": "iid",
        "several": "drop",
        "slices": 100,
        "in_the_table": {"without_subtype": 10, "several_subtypes": 0},
        "windows": [[40, 80], [80, 200], [40, 380]],
        "classes": list(RSNA_ICH_CLASSES),
    }
    assert {key: description[key] for key in expected} == expected
    assert "client_partition" not in description
    config = json.loads((tmp_path / "out" / "site-3" / "grandrounds.json").read_text())
    assert config["datasets"]["ich"]["windows"] == [[40, 80], [80, 200], [40, 380]]
    brain = make_partition("rsna_ich", root, tmp_path / "brain", sites=4, slices=100, windows=[(40, 80)], **FEDIRM)
    assert brain["windows"] == [[40, 80]]
    assert (root / "patients.csv").is_file()


def test_clients_of_whole_patients(root, tmp_path):
    make_partition("rsna_ich", root, tmp_path / "out", sites=4, slices=120, **FEDIRM)
    places = {(row["patient"], site, row["split"]) for site, rows in rows_of(tmp_path / "out").items() for row in rows}
    assert len(places) == len({patient for patient, _, _ in places}) == 40


def test_clients_of_single_slices_share_patients_but_no_patient_is_in_two_splits(root, tmp_path):
    out = tmp_path / "out"
    description = make_partition("rsna_ich", root, out, sites=10, slices=120, client_partition="slice", **FEDIRM)
    assert description["client_partition"] == "slice"
    sites, splits = defaultdict(set), defaultdict(set)
    for site, rows in rows_of(out).items():
        for row in rows:
            sites[row["patient"]].add(site)
            splits[row["patient"]].add(row["split"])
    assert len(splits) == 40
    assert all(len(found) == 1 for found in splits.values())
    assert sum(len(found) > 1 for found in sites.values()) > 20
    assert Counter(row["split"] for rows in rows_of(out).values() for row in rows) == {
        "train": 84,
        "val": 12,
        "test": 24,
    }
    for site, summary in description["sites"].items():
        assert sum(summary["images"].values()) == 12
        assert summary["images"]["train"] in (8, 9)
        assert summary["labelled"] == (summary["images"]["train"] if site in ("site-1", "site-2") else 0)


def test_the_seed_decides_which_slices_are_drawn(root, tmp_path):
    def images(name, seed):
        make_partition("rsna_ich", root, tmp_path / name, sites=4, slices=90, seed=seed, **FEDIRM)
        return {row["image"] for rows in rows_of(tmp_path / name).values() for row in rows}

    first = images("a", 1)
    assert len(first) == 90
    assert first != images("b", 2)


def test_patients_can_be_written_elsewhere(root, tmp_path):
    table = tmp_path / "whose.csv"
    reported = []
    make_partition(
        "rsna_ich",
        root,
        tmp_path / "out",
        sites=4,
        slices=100,
        patients=table,
        progress=lambda *at: reported.append(at),
    )
    assert table.is_file()
    assert not (root / "patients.csv").exists()
    assert reported[-1] == (120, 120)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"scheme": "dirichlet", "client_partition": "slice"},
            "client_partition slice is for the scheme iid, got dirich",
        ),
        ({"windows": [[40, 0]]}, "windows: the width of a window must be at least 1 Hounsfield unit, got 0"),
        ({"group_by": "image"}, "data set rsna_ich has no option group_by"),
        ({"dataset_name": "ct"}, "data set rsna_ich has no option dataset_name"),
    ],
)
def test_choices_that_do_not_fit_are_refused(root, tmp_path, options, message):
    with pytest.raises(ConfigurationError, match=message):
        make_partition("rsna_ich", root, tmp_path / "out", sites=4, **options)


def test_a_shared_patient_in_two_splits_is_refused(tmp_path):
    sites = {
        "site-1": [Record("a", "x", "train", "p")],
        "site-2": [Record("b", "x", "test", "p")],
    }
    with pytest.raises(DataError, match="patient 'p' is in split train at site-1"):
        write_partition(sites, tmp_path / "out", "ct", tmp_path, ("x",), {}, shared_patients=True)
    with pytest.raises(DataError, match="patient 'p' is at two sites"):
        write_partition(sites, tmp_path / "out", "ct", tmp_path, ("x",), {})
    sites["site-2"] = [Record("a", "x", "train", "p")]
    with pytest.raises(DataError, match="image 'a' is at two sites"):
        write_partition(sites, tmp_path / "out", "ct", tmp_path, ("x",), {}, shared_patients=True)
