"""The notebooks run from the first to the last cell, and their committed outputs are small and without errors."""

import base64

import nbformat
import pytest
from jupyter_core.utils import run_sync
from nbclient import NotebookClient

from tests.documentation.pages import ROOT

FOLDER = ROOT / "docs" / "notebooks"
FIRST, LESIONS, PRIVACY = "first-federation.ipynb", "semi-supervised.ipynb", "privacy.ipynb"
METHODS = "methods.ipynb"
TINY = 'OPTIONS = {"executor.steps": 1, "executor.batch_size": 2}\nROUNDS = 1\n'
SMALL = {
    FIRST: TINY,
    LESIONS: f"{TINY}SITES = 4\nPRESET = None\n",
    PRIVACY: f"{TINY}NOISE = [None, 1.0]\n",
    METHODS: 'METHODS = ["local", "ridge"]\nSEEDS = [1, 2]\nIMAGES = 120\n',
}
"""What replaces the parameters of a notebook."""
MAX_FIGURE = 100_000


def read(name):
    """A committed notebook."""
    return nbformat.read(FOLDER / name, as_version=4)


def code(book):
    return [cell for cell in book.cells if cell.cell_type == "code"]


def test_all_notebooks_are_known():
    assert sorted(path.name for path in FOLDER.glob("*.ipynb")) == sorted(SMALL)


@pytest.mark.parametrize("name", SMALL)
def test_committed_outputs_are_of_one_whole_run_and_small(name):
    cells = code(read(name))
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    for output in (output for cell in cells for output in cell.outputs):
        assert output.output_type != "error"
        assert output.get("name") != "stderr", output.get("text")
        figure = base64.b64decode(output.get("data", {}).get("image/png", ""))
        assert len(figure) < MAX_FIGURE
    assert (FOLDER / name).stat().st_size < 3 * MAX_FIGURE


def test_the_notebooks_run_and_show_what_was_committed(tmp_path, monkeypatch, shared_cache):
    monkeypatch.delenv("GRANDROUNDS_DATA", raising=False)
    run(SMALL, tmp_path)


@pytest.mark.documentation
@pytest.mark.realdata
def test_the_notebook_about_lesions_runs_on_real_ones(tmp_path, monkeypatch, realdata):
    monkeypatch.setenv("GRANDROUNDS_DATA", str(realdata))
    run([LESIONS], tmp_path)


def run(names, place):
    """Run notebooks one after the other in one kernel, which imports the libraries once."""
    kernel = None
    try:
        for name in names:
            book = read(name)
            committed = [output_kinds(cell) for cell in code(book)]
            (parameters,) = [cell for cell in book.cells if "parameters" in cell.metadata.get("tags", ())]
            parameters.source = f"%reset -f\n{parameters.source}\n{SMALL[name]}"
            limits = {"timeout": 900, "startup_timeout": 600}
            client = NotebookClient(book, km=kernel, resources={"metadata": {"path": str(place)}}, **limits)
            client.execute(cleanup_kc=False)
            kernel = client.km
            assert [output_kinds(cell) for cell in code(book)] == committed, name
    finally:
        if kernel is not None:
            run_sync(kernel.shutdown_kernel)(now=True)


def output_kinds(cell):
    """The kinds of what a cell shows: text, a table, a figure."""
    shown = (output for output in cell.outputs if output.get("name") != "stderr")
    return [sorted(output.get("data", {"stream": ""})) for output in shown]
