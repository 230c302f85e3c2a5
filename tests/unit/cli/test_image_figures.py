"""Pictures of single images: what several models look at, on the images on which they differ."""

import json
import shutil

import pytest
import torch

import grandrounds as gr
from benchmarks.fed_align_cl_ham10000 import cases

CLASSES = ["nevus", "melanoma"]


@pytest.fixture(scope="module")
def two_runs(run, tiny, write_sites, tmp_path_factory):
    """A finished run, and one whose model predicts the opposite: on each image exactly one of them is right."""
    folder = tmp_path_factory.mktemp("two_runs")
    data, ours, theirs = write_sites(folder, 2), folder / "ours", folder / "theirs"
    made = run("simulate", "fedavg", *tiny, "--sites-dir", data, "--workspace", ours)
    assert made.exit_code == 0, made.output
    shutil.copytree(ours, theirs)
    place = theirs / "results" / "selected.pt"
    weights = torch.load(place, weights_only=True)
    last = [name for name, value in weights.items() if len(value.shape) > 0 and len(value) == len(CLASSES)]
    torch.save({name: value.flip(0) if name in last else value for name, value in weights.items()}, place)
    return ours, theirs, data


def test_the_sheets_of_each_site_are_drawn(run, two_runs, tmp_path):
    ours, _, data = two_runs
    drawn = run("figures", ours, "--out", tmp_path / "out", "--sites-dir", data)
    assert drawn.exit_code == 0, drawn.output
    names = {place.stem for place in (tmp_path / "out").iterdir()}
    assert {"samples_site-1", "grad_cam_site-2", "failures_site-1"} <= names


def test_models_are_shown_where_one_of_them_is_right_alone(two_runs, tmp_path, monkeypatch, capsys):
    ours, theirs, data = map(str, two_runs)
    words = ["cases", ours, f"Other={theirs}", "--sites-dir", data, "--out", str(tmp_path / "out")]
    monkeypatch.setattr("sys.argv", words)
    cases.main()
    assert capsys.readouterr().out == f"{tmp_path / 'out' / 'scenarios.png'}\n"
    assert (tmp_path / "out" / "scenarios.png").is_file()


def test_the_sheet_has_the_images_of_the_scenarios_without_labels_of_mammograms(two_runs):
    ours, theirs, data = two_runs
    axes = cases.case_figures([str(ours), f"Other={theirs}"], data)["scenarios"].axes
    rows = [axes[3 * number : 3 * number + 3] for number in range(4)]
    empty = [[text.get_text() for text in row[0].texts] == ["no image"] for row in rows]
    assert empty[:2] == [True, True]  # never both right, never both wrong
    assert not all(empty[2:])
    assert [panel.get_title() for panel in rows[0]] == ["", "ours", "Other"]
    below = {panel.get_xlabel() for row in rows for panel in row}
    assert below & {"is nevus", "is melanoma"}
    assert not any("inside" in text for text in below)  # only of a mammogram


def test_runs_that_cannot_be_compared_are_refused(run, two_runs, tmp_path):
    *runs, data = two_runs
    ours, theirs = (shutil.copytree(workspace, tmp_path / workspace.name) for workspace in runs)
    place = theirs / "results" / "summary.json"
    content = json.loads(place.read_text())
    content["configuration"]["problem"]["classes"] = CLASSES[::-1]
    place.write_text(json.dumps(content))
    for path in (theirs / "results").glob("*/predictions_*.csv"):
        path.unlink()
    with pytest.raises(gr.ConfigurationError, match="ours and theirs have different classes"):
        cases.case_figures([str(ours), str(theirs)], data)
    (ours / "results" / "selected.pt").unlink()
    unfinished = run("figures", ours, "--out", tmp_path / "out", "--sites-dir", data)
    assert "has no model for all sites to show cases of" in unfinished.stderr
