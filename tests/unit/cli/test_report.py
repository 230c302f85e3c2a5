"""``grandrounds report`` and ``grandrounds export`` from a run to files, and what they refuse."""

import base64
import csv
import io
import json
import re
import shutil
import stat
from math import nan

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open

from grandrounds.data.images.decoding import to_square
from grandrounds.data.manifest import read_manifest
from grandrounds.data.site import locate_dataset
from grandrounds.evaluation.score import Score, ScoreSheet
from grandrounds.models.registry import architecture_fingerprint
from grandrounds.reporting.export import literal_text, score_sentence
from grandrounds.reporting.run import RunScores
from grandrounds.reporting.tables import plain_markdown


@pytest.fixture(scope="module")
def finished(run, write_sites, tmp_path_factory, tiny):
    """A run and its sites, which no test changes."""
    folder = tmp_path_factory.mktemp("finished")
    partition = write_sites(folder, 2)
    result = run("simulate", "fedavg", "--sites-dir", partition, "--workspace", folder / "run", *tiny)
    assert result.exit_code == 0, result.output
    return folder / "run", partition


@pytest.fixture
def trained(finished, tmp_path):
    """The run in a folder of the test's own, and its sites."""
    workspace, partition = finished
    return shutil.copytree(workspace, tmp_path / "run"), partition


def test_a_run_becomes_a_page_and_a_model(run, trained, tmp_path, monkeypatch):
    workspace, partition = trained
    out = tmp_path / "report"
    result = run("report", workspace, "--out", out, "--sites-dir", partition, "--groups", partition, "--title", "Trial")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [str(out / "report.html")]
    numbers = json.loads((out / "report.json").read_text())
    assert numbers["title"] == "Trial"
    assert numbers["runs"][0]["communities"].keys() == {"site-1", "site-2"}

    result = run("export", workspace, "--out", tmp_path / "model", "--licence", "CC0")
    assert result.exit_code == 0, result.output
    card = json.loads((tmp_path / "model" / "model_card.json").read_text())
    assert card["classes"] == ["nevus", "melanoma"]
    assert card["data"]["licence"] == "CC0"
    state = torch.load(workspace / "results" / "selected.pt", weights_only=True)
    assert card["weights"]["architecture_fingerprint"] == architecture_fingerprint(state)
    with safe_open(tmp_path / "model" / "model.safetensors", "pt") as file:
        assert json.loads(file.metadata()["classes"]) == card["classes"]
        assert {name: file.get_tensor(name).equal(value) for name, value in state.items()} == dict.fromkeys(state, True)

    text = (tmp_path / "model" / "bundle" / "docs" / "README.md").read_text()
    assert "Balanced accuracy: all sites' test images together" in text

    from monai import bundle  # seconds, which most files need not spend

    network, _, _ = bundle.load("bundle", bundle_dir=tmp_path / "model", load_ts_module=True, device="cpu")
    assert all(torch.equal(network.state_dict()[name], value) for name, value in state.items())
    assert network(torch.zeros(1, 3, 32, 32)).shape == (1, 2)


def test_examples_are_shown_only_if_asked_for_and_only_of_a_simulation(run, trained, tmp_path):
    workspace, partition = trained
    out = tmp_path / "report"
    command = ["report", workspace, "--out", out]
    assert run(*command, "--sites-dir", partition).exit_code == 0
    assert "data:image/png" not in (out / "report.html").read_text()
    assert "contains no image" in (out / "report.html").read_text()
    result = run(*command, "--sites-dir", partition, "--examples")
    assert result.exit_code == 0, result.output
    page = (out / "report.html").read_text()
    shown = re.findall(r'<figure><img src="data:image/png;base64,([^"]+)" alt="([^"]+)"><figcaption>([^<]+)<', page)
    assert [(alt, caption) for _, alt, caption in shown] == [("nevus", "nevus"), ("melanoma", "melanoma")]
    first = read_manifest(locate_dataset("site-1", "skin", [partition]).manifest)
    named = {record.label: record.image for record in reversed(first) if record.labelled and record.split == "train"}
    for source, name, _ in shown:
        pixels = np.array(Image.open(io.BytesIO(base64.b64decode(source))))
        own = np.array(Image.open(partition.parent / "images" / named[name]).convert("RGB"))
        assert np.array_equal(pixels, to_square(own, 128, 3))
        assert named[name] not in page
    assert "contains no image" not in page.replace("contains no image's name", "")
    assert stat.S_IMODE((out / "report.html").stat().st_mode) == 0o600
    assert "examples" not in json.loads((out / "report.json").read_text())
    refused = run(*command, "--examples")
    assert "--sites-dir" in refused.stderr
    record = workspace / "results" / "provenance.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "simulated": False}))
    refused = run(*command, "--sites-dir", partition, "--examples")
    assert refused.exit_code == 1
    assert "was not simulated on this machine, and no report shows images of other places" in refused.stderr


NAMES = ("$open('ran','w')", "%other.json", "@network", "it's @::x #1 %::y", "$", 'a"b\\$\x1b', "nevus")


def test_monai_evaluates_no_name_of_a_bundle(run, tmp_path, tiny, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hostile, licence = ("$open('ran','w')", "<img src=x>*%other.json"), "$open('ran','w')<img>"
    generator = np.random.default_rng(0)
    for name in hostile:
        folder = tmp_path / "images" / "site-1" / name
        folder.mkdir(parents=True)
        for number in range(10):
            pixels = generator.integers(0, 256, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{number}.png")
    result = run("simulate", "fedavg", "--images", "images", "--no-reference", "--workspace", "run", *tiny)
    assert result.exit_code == 0, result.output
    result = run("export", "run", "--out", "model", "--licence", licence)
    assert result.exit_code == 0, result.output

    from monai import bundle

    configs = tmp_path / "model" / "bundle" / "configs"
    workflow = bundle.ConfigWorkflow(
        config_file=str(configs / "inference.json"),
        meta_file=str(configs / "metadata.json"),
        workflow_type="inference",
        logging_file=False,
    )
    workflow.initialize()
    assert workflow.channel_def == dict(zip("01", hostile, strict=True))
    assert workflow.parser.get_parsed_content("_meta_")
    assert not (tmp_path / "ran").exists()
    text = (tmp_path / "model" / "bundle" / "docs" / "README.md").read_text()
    assert "<" not in text
    assert plain_markdown(licence) in text
    assert json.loads((tmp_path / "model" / "bundle" / "docs" / "model_card.json").read_text())["classes"] == [*hostile]


def test_a_literal_is_its_text_to_monai():
    from monai.bundle import ConfigParser

    parser = ConfigParser({"network": 1, "names": [literal_text(name) for name in NAMES]})
    parser.parse()
    assert parser.get_parsed_content("names") == [*NAMES]
    assert literal_text("nevus") == "nevus"


def test_the_score_of_all_images_comes_before_the_mean_over_sites():
    score, mean = Score(0.5, 0.25, 0.75, 40), {"balanced_accuracy": Score(0.625, nan, nan, 40)}
    references = {"chance": {"balanced_accuracy": 0.25}}
    pooled = ScoreSheet(40, 40, "image", {"balanced_accuracy": score}, {}, {}, references)
    assert score_sentence(RunScores(pooled=pooled, mean=mean), "balanced_accuracy") == (
        "Balanced accuracy: all sites' test images together 0.50 [0.25, 0.75]; mean over sites 0.62; chance 0.25."
    )
    assert score_sentence(RunScores(), "balanced_accuracy") == "Balanced accuracy: no test, or too few test cases."


def test_single_cases_are_shown_only_where_the_images_are_and_in_no_report(run, trained, tmp_path):
    workspace, partition = trained
    result = run("figures", workspace, "--out", tmp_path / "private", "--sites-dir", partition)
    assert result.exit_code == 0, result.output
    shown = {path.stem for path in (tmp_path / "private").iterdir()}
    assert {f"{kind}_site-{number}" for kind in ("samples", "grad_cam") for number in (1, 2)} <= shown
    result = run("report", workspace, "--out", tmp_path / "report", "--sites-dir", partition)
    assert result.exit_code == 0, result.output
    assert not [path for path in (tmp_path / "report").rglob("*") if "samples" in path.name or "grad_cam" in path.name]


def test_wrong_images_are_listed_by_name_the_surest_first(run, trained, tmp_path):
    workspace, _ = trained
    rows = []
    for site in ("site-1", "site-2"):
        path = workspace / "results" / site / "predictions_common.csv"
        lines = list(csv.DictReader(path.open(newline="")))
        lines[0]["predicted"] = "melanoma" if lines[0]["label"] == "nevus" else "nevus"
        path.write_text("".join(f"{','.join(cells)}\n" for cells in (lines[0], *(line.values() for line in lines))))
        rows += [{"site": site, **line} for line in lines if line["predicted"] != line["label"]]
    listed = run("errors", workspace, "--out", tmp_path / "errors.csv", "--json")
    assert listed.exit_code == 0, listed.output
    found = json.loads(listed.stdout)
    assert [image["probability"] for image in found] == sorted((image["probability"] for image in found), reverse=True)
    expected = {(line["site"], line["image"], line["label"], line["predicted"]) for line in rows}
    assert {(image["site"], image["image"], image["label"], image["called"]) for image in found} == expected
    risks = {(line["site"], line["image"]): float(line[f"probability_{line['predicted']}"]) for line in rows}
    assert risks == {(image["site"], image["image"]): image["probability"] for image in found}
    with (tmp_path / "errors.csv").open(newline="") as stream:
        assert [line["image"] for line in csv.DictReader(stream)] == [image["image"] for image in found]
    table = run("errors", workspace).stdout
    assert all(line["image"] in table for line in rows)
    assert f"{len(rows)} test images are wrong" in table


def test_wrong_images_are_not_known_where_predictions_stayed_at_the_sites(run, trained):
    workspace, _ = trained
    for path in (workspace / "results").glob("*/predictions_*.csv"):
        path.unlink()
    refused = run("errors", workspace)
    assert refused.exit_code == 1
    assert "stay at the sites" in refused.stderr


def test_cases_of_a_run_without_a_common_model_cannot_be_shown(run, tmp_path, make_summary, sites_dir):
    workspace = without_model(tmp_path, make_summary)
    (workspace / "events.jsonl").write_text('{"event": "start", "rounds": 1, "sites": ["site-1"]}\n')
    result = run("figures", workspace, "--out", tmp_path / "private", "--sites-dir", sites_dir(1))
    assert result.exit_code == 1
    assert "has no model for all sites to show cases of" in result.stderr


def test_a_folder_that_is_not_a_run_is_one_line(run, tmp_path):
    result = run("report", tmp_path, "--out", tmp_path / "report")
    assert result.exit_code == 1
    assert "is no run" in result.stderr
    assert not (tmp_path / "report").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[: len(text) // 2], "b/summary.json is not valid JSON"),
        (
            lambda text: text.replace('"nevus"', '"mole"'),
            "a and b have different classes (nevus, melanoma; mole, melanoma)",
        ),
    ],
)
def test_runs_that_cannot_be_compared_are_one_line(run, tmp_path, make_summary, change, message):
    problem = {"dataset": "skin", "classes": ["nevus", "melanoma"]}
    content = json.dumps(make_summary(configuration={"method": "fedavg", "problem": problem}, seconds=1))
    for name, text in (("a", content), ("b", change(content))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "summary.json").write_text(text)
    result = run("report", tmp_path / "a", tmp_path / "b", "--out", tmp_path / "report")
    assert result.exit_code == 1
    assert message in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "report").exists()


def without_model(tmp_path, make_summary):
    """The results of a run in which every site kept its model."""
    folder = tmp_path / "local"
    folder.mkdir()
    problem = {"dataset": "skin", "classes": ["a", "b"]}
    content = make_summary(configuration={"method": "LocalController", "problem": problem}, contributions={}, seconds=1)
    (folder / "summary.json").write_text(json.dumps(content))
    return folder


def test_a_run_without_a_common_model_cannot_be_exported(run, tmp_path, make_summary):
    result = run("export", without_model(tmp_path, make_summary), "--out", tmp_path / "model")
    assert result.exit_code == 1
    assert "has no selected model" in result.stderr
