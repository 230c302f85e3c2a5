"""The example with further published data sets keeps the rules of the package's own, and shows what plug-ins can do."""

import doctest
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from published_data import isic

import grandrounds as gr
from grandrounds.data.datasets.published import Progress
from grandrounds.data.families import OWN_DATASETS, dataset_options, own_datasets
from grandrounds.data.manifest import Record
from grandrounds.data.partition.schemes import make_partition

EXAMPLE = Path(__file__).parents[4] / "examples" / "published_data"
NAMES = (
    "bloodmnist", "cbis_ddsm", "cifar10", "cmmd", "inbreast", "isic2018", "isic2020", "lesions", "mammograms", "matek19",
    "mini_mias", "mll23", "rsna_ich",
)  # fmt: skip
MODULES = ("isic", "rsna_ich", "mammography.inbreast", "mammography.mini_mias", "mammography.records")


def test_each_data_set_is_registered_with_its_layout():
    assert sorted(own_datasets()) == list(NAMES)
    assert all(own.layout != "Data set of a plug-in." for own in own_datasets().values())


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_without_the_data_set_is_refused_with_what_was_expected_and_where(name, tmp_path):
    empty, out = tmp_path / "empty", tmp_path / "out"
    empty.mkdir()
    with pytest.raises(gr.DataError, match=rf"{re.escape(str(empty))}.*(looked for|expected|missing)"):
        make_partition(name, empty, out)
    with pytest.raises(gr.ConfigurationError, match="no_such_option"):
        make_partition(name, empty, out, no_such_option=1)
    assert not out.exists()


@pytest.mark.parametrize("module", MODULES)
def test_examples_in_docstrings_are_right(module):
    assert doctest.testmod(import_module(f"published_data.{module}")).failed == 0


def test_the_command_line_finds_the_plug_in_by_its_variable():
    environment = {**os.environ, "GRANDROUNDS_PLUGINS": "published_data", "PYTHONPATH": str(EXAMPLE)}
    command = [sys.executable, "-m", "grandrounds", "partition", "rsna_ich", "--options"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert "│ client_partition " in done.stdout, done.stderr


@pytest.fixture
def registered(monkeypatch):
    """What registers a reader for a test."""
    monkeypatch.setattr(OWN_DATASETS, "entries", dict(OWN_DATASETS.entries))

    def register(reader, options=gr.PartitionOptions):
        gr.register_dataset("drawn", options=options)(reader)

    return register


def records(count):
    return tuple(Record(f"{n}.png", "ab"[n % 2], source="x") for n in range(count))


def test_a_reader_gives_a_whole_data_set_and_its_options_the_divisions(registered, tmp_path):
    calls = []

    def reader(root, options, progress: Progress | None = None):
        progress(1, 1)
        return gr.ReadDataset(records(40), root, ("a", "b"), {"further": 1}, name="job name")

    registered(reader)
    options = {"scheme": "iid", "sites": 2}
    made = make_partition("drawn", tmp_path, tmp_path / "out", progress=lambda *step: calls.append(step), **options)
    assert (made["dataset_name"], made["further"], made["classes"]) == ("job name", 1, ["a", "b"])
    assert "import" not in made
    assert calls == [(1, 1)]
    assert "patient_pattern" not in {field for field in vars(dataset_options()["drawn"]())}


@pytest.mark.parametrize(
    ("reader", "message"),
    [(lambda root, options: [{"image": "a.png"}], "must give a ReadDataset"), (lambda root, options: 1 / 0, "failed")],
)
def test_a_reader_that_gives_something_else_is_named(registered, tmp_path, reader, message):
    registered(reader)
    with pytest.raises(gr.DataError, match=f"drawn {message}"):
        make_partition("drawn", tmp_path, tmp_path / "out")


def test_a_data_set_of_a_plug_in_can_be_the_public_set(registered, tmp_path):
    registered(lambda root, options: gr.ReadDataset(records(40), root, ("a", "b")), type(dataset_options()["pbc"]()))
    for place in (tmp_path / "private", tmp_path / "public"):
        place.mkdir()
        for record in records(40):
            (place / record.image).write_text(record.image)
    options = {"public": "drawn", "public_root": tmp_path / "public", "sites": 2}
    made = make_partition("drawn", tmp_path / "private", tmp_path / "out", **options)
    assert made["public_set"]["images"] == 40
    with pytest.raises(gr.ConfigurationError, match="dataset must be one of"):
        make_partition("drawn", tmp_path / "private", tmp_path / "x", **{**options, "public": "nothing"})


def test_the_contract_of_readers_holds_for_a_whole_data_set(isic2018, tmp_path):
    root = isic2018(tmp_path, [("ISIC_1", "MEL", "HAM_1"), ("ISIC_2", "NV", "HAM_2")])
    gr.testing.check_dataset(isic.isic2018, root, isic.Isic2018Options())
    with pytest.raises(AssertionError, match="row 1: there is no file"):
        gr.testing.check_dataset(lambda root, options: gr.ReadDataset(records(2), root, ("a", "b")), root)
