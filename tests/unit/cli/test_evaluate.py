import csv
import json
import re
import shlex

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import nn

from grandrounds.api.evaluation import located
from grandrounds.data.images.decoding import pixel_digest
from grandrounds.data.manifest import Record, write_manifest
from grandrounds.data.site import DatasetLocation
from grandrounds.errors import DataError
from grandrounds.evaluation.external import load_test_images
from grandrounds.models.registry import build_model
from grandrounds.protocol.problem import ModelSpec, Problem
from grandrounds.reporting.external import prediction

PROBLEM = {"dataset": "skin", "classes": ["nevus", "melanoma"], "image_size": 32}
GROUPS = "bad=melanoma;good=nevus"


@pytest.fixture
def trained(tmp_path, make_summary):
    """A finished run with an untrained model; arguments replace entries of its summary."""

    def make(**changes):
        make.workspace = tmp_path / "trained"
        results = make.workspace / "results"
        results.mkdir(parents=True)
        configuration = {"method": "FedAvgController", "problem": PROBLEM}
        base = {"configuration": configuration, "contributions": {}, "seconds": 1.0, "records": {}, "bytes": {}}
        (results / "summary.json").write_text(json.dumps(make_summary(**{**base, **changes})))
        torch.save(build_model(ModelSpec("compact", classes=2), seed=1).state_dict(), results / "selected.pt")
        return tmp_path / "trained"

    return make


@pytest.fixture
def listed(tmp_path, images):
    """Arguments for a manifest of test images with these labels."""

    def make(*labels):
        names = images("clinic", len(labels))
        records = [Record(name, label, "test") for name, label in zip(names, labels, strict=True)]
        write_manifest(records, tmp_path / "clinic.csv")
        return ["--manifest", tmp_path / "clinic.csv", "--root", tmp_path / "images"]

    return make


def assert_line(result, pattern):
    assert result.exit_code == 1, result.output
    compared = "(Whether the images are like the training images .*\n)?"
    assert re.fullmatch(f"{compared}error: .*{pattern}.*\n", result.stderr), result.stderr


def test_a_runs_own_test_scores_are_found_again(run, sites_dir, tiny, tmp_path):
    data = sites_dir(2)
    ran = run("simulate", "fedavg", *tiny, "--sites-dir", data, "--workspace", tmp_path / "run", "--json")
    tested = json.loads(ran.stdout)["records"]
    refused = run("evaluate", tmp_path / "run", "--sites-dir", data)
    assert_line(
        refused, "site-1, site-2 took part in the run, so this is no external validation; evaluate another place"
    )
    result = run("evaluate", tmp_path / "run", "--sites-dir", data, "--allow-overlap", "--json")
    assert result.exit_code == 0, result.output
    warning = "WARNING: 4 of the images are images of the run's sites; site-1, site-2 took part in the run"
    assert warning in result.stderr
    found = json.loads(result.stdout)
    assert found["external"]["caveats"][0].startswith("4 of the images are images of the run's sites")
    assert found["model"] == str(tmp_path / "run" / "results" / "selected.pt")
    assert found["sites"].keys() == {"site-1", "site-2"}
    for site, scores in found["sites"].items():
        common = {name: tested[site]["common"]["exact"][name] for name in ("accuracy", "f1_weighted", "log_loss")}
        assert {name: scores[name] for name in common} == pytest.approx(common, abs=1e-5)


def test_tables_show_sites_classes_the_constant_answer_and_both_readings(run, trained, sites_dir):
    result = run("evaluate", trained(), "--sites-dir", sites_dir(2), "--groups", GROUPS, "--minimum", "1")
    assert result.exit_code == 0, result.output
    for row in ("the model", "site site-1", "always nevus", "melanoma"):
        assert re.search(f"│ {row} +│", result.stdout), row
    for reading in ("the group of the predicted class", "the highest sum of a group"):
        assert re.search(f"│ {reading} +│ good +│ +2 ", result.stdout)


def test_one_site_of_a_partition_is_the_place(run, trained, sites_dir):
    result = run("evaluate", trained(), "--sites-dir", sites_dir(3), "--site", "site-2")
    assert "site-2: fewer than 10 test images by class" in result.stdout
    assert "site-1" not in result.stdout
    assert "bad" not in result.stdout


def test_json_has_null_where_nothing_is_known(run, trained, listed):
    result = run("evaluate", trained(), *listed("nevus", "nevus"), "--json")
    found = json.loads(result.stdout, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert found["sites"].keys() == {"clinic"}
    assert found["classes"]["melanoma"]["pooled"]["f1"] is None
    assert found["classes"]["nevus"]["n"] == 2


def test_labels_that_are_groups_are_scored_as_groups(run, trained, listed, tmp_path):
    written = tmp_path / "found.csv"
    arguments = [*listed("good", "bad", "bad"), "--groups", GROUPS, "--predictions", written]
    result = run("evaluate", trained(), *arguments, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["labels"] == "groups"
    assert list(found["classes"]) == ["bad", "good"]
    assert found["groups"]["summed"]["bad"]["n"] == 2
    with written.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["label"] for row in rows] == ["good", "bad", "bad"]
    right = [row["label"] == row["group_summed"] for row in rows]
    assert found["pooled"]["accuracy"] == pytest.approx(sum(right) / 3)
    assert "Scores of all groups together" in run("evaluate", tmp_path / "trained", *arguments).stdout


def test_a_model_file_and_the_folder_of_results_are_found_too(run, trained, listed):
    results, data = trained() / "results", listed("nevus", "melanoma")
    (results / "selected.pt").rename(results / "last.pt")
    named = json.loads(run("evaluate", results / "last.pt", *data, "--json").stdout)
    (results / "last.pt").rename(results / "selected.pt")
    folder = json.loads(run("evaluate", results, *data, "--json").stdout)
    assert folder["sites"] == named["sites"]


def test_unreadable_images_are_reported(run, trained, sites_dir, tmp_path):
    data = sites_dir(1)
    config = data / "site-1" / "grandrounds.json"
    content = json.loads(config.read_text())
    content["datasets"]["skin"]["max_unreadable"] = 0.5
    config.write_text(json.dumps(content))
    (tmp_path / "images" / "site-1" / "7.png").write_bytes(b"no image")
    result = run("evaluate", trained(), "--sites-dir", data)
    assert result.stderr.startswith("site-1: 1 test images cannot be read and are left out\n")
    assert "fewer than 10 test images by class; 1 cannot be read and are left out" in result.stdout


def test_labels_and_classes_that_the_model_does_not_know_are_named(run, trained, listed, tmp_path):
    data = listed("nevus", "scc")
    assert_line(
        run("evaluate", trained(), *data),
        r"clinic.csv line 3, column label: 'scc' is not one of the classes .*add --groups",
    )
    unknown = run("evaluate", tmp_path / "trained", *data, "--groups", "bad=melanoma,scc;good=nevus")
    assert_line(unknown, "--groups: bad: 'scc' is not one of the classes nevus, melanoma; leave out")


def test_a_foreign_table_is_evaluated_after_what_the_refusals_say(run, trained, images, tmp_path):
    labels = ["Nevus", "MELANOMA", "scc", "Nevus"]
    rows = [f"{name.removesuffix('.png')},{label}" for name, label in zip(images("clinic", 4), labels, strict=True)]
    (tmp_path / "t.csv").write_text("\n".join(["image_id,dx", *rows]) + "\n")
    refused = run("evaluate", trained(), "--manifest", tmp_path / "t.csv", "--root", tmp_path / "images")
    first = shlex.split(re.search(r"grandrounds (import /.*) DIR\n", refused.stderr)[1])
    columns = re.search("--columns '(.*)'", run(*first, tmp_path / "place").stderr)[1]
    assert run(*first, tmp_path / "place", "--columns", columns).exit_code == 0
    words = run("evaluate", trained.workspace, "--sites-dir", tmp_path / "place")
    second = shlex.split(re.search(r"grandrounds (import .*) DIR\n", words.stderr)[1].replace("=CLASS", "="))
    assert run(*second, tmp_path / "known").exit_code == 0
    found = ["--sites-dir", tmp_path / "known", "--predictions", tmp_path / "found.csv"]
    assert run("evaluate", trained.workspace, *found).exit_code == 0
    predicted = csv.DictReader((tmp_path / "found.csv").read_text().splitlines())
    assert [row["label"] for row in predicted] == ["nevus", "melanoma", "nevus"]


def test_training_images_and_a_missing_test_image_are_not_asked_for_first(images, tmp_path):
    manifest, root = tmp_path / "t.csv", tmp_path / "images"
    (name,) = images("clinic", 1)
    known = [Record("gone.png", "nevus", "train"), Record("lost.png", "nevus", "test")]
    write_manifest([*known, Record(name, "nevus", "test")], manifest)
    assert located(None, None, manifest, root) == {"t": DatasetLocation(manifest, root)}
    write_manifest([*known, Record(name, "", "test")], manifest)
    with pytest.raises(DataError, match=r"lost\.png.*; or make a place of it.*grandrounds import"):
        located(None, None, manifest, root)


@pytest.mark.parametrize("task", ["single", "multi"])
def test_no_word_of_a_table_is_given_a_class_but_by_who_types_the_command(run, images, tmp_path, task):
    def proposed(*labels):
        names = images("clinic", len(labels))
        write_manifest([Record(n, label, "test") for n, label in zip(names, labels, strict=True)], tmp_path / "t.csv")
        here, problem = DatasetLocation(tmp_path / "t.csv", tmp_path / "images"), Problem(**PROBLEM, task=task)
        with pytest.raises(DataError) as refused:
            load_test_images("clinic", here, problem, problem.classes, tmp_path / "cache")
        return str(refused.value), shlex.split(re.search(r"grandrounds (import .*) DIR", str(refused.value))[1])

    said, command = proposed("nevus", "tumour", "melanoma")
    assert ("a class or none for CLASS" in said) == (task == "multi")
    unchanged = run(*command, tmp_path / "place")
    assert unchanged.exit_code == 1
    assert "'CLASS' is not one of the classes nevus, melanoma" in unchanged.stderr
    assert run(*[word.replace("=CLASS", "=nevus") for word in command], tmp_path / "place").exit_code == 0
    said, command = proposed("nevus", "tumour, benign", "a=b", "naevus")
    assert "(write the class in place of 'a=b', 'tumour, benign' in a COPY of " in said
    assert command[1] == "COPY"
    assert command[command.index("--merge") + 1] == "label,label:naevus=CLASS"


def test_a_folder_is_no_partition_and_the_refusal_says_what_makes_one(run, trained, images, tmp_path):
    for name in ("nevus", "melanoma"):
        images(name, 2)
    refused = run("evaluate", trained(), "--sites-dir", tmp_path / "images")
    command = shlex.split(re.search(r"grandrounds (import .*) DIR", refused.stderr)[1])
    assert run(*command, tmp_path / "place", "--scheme", "external").exit_code == 0
    assert run("evaluate", trained.workspace, "--sites-dir", tmp_path / "place").exit_code == 0


def test_a_manifest_without_splits_is_all_for_testing(run, trained, listed, tmp_path):
    data = listed("nevus", "melanoma", "nevus")
    table = pd.read_csv(tmp_path / "clinic.csv")
    table.drop(columns="split").to_csv(tmp_path / "clinic.csv", index=False)
    result = run("evaluate", trained(), *data, "--minimum", 1, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["external"]["cases"] == 3


def test_a_site_without_test_images_is_named(run, trained, sites_dir, images):
    records = [Record(name, "nevus") for name in images("site-9", 2)]
    data = sites_dir(1, site_9=records)
    assert_line(run("evaluate", trained(), "--sites-dir", data), "site-9: .* has no labelled image in split test")


def test_a_run_without_a_model_is_reported_with_the_reason(run, trained, listed):
    workspace, data = trained(), listed("nevus")
    (workspace / "results" / "selected.pt").unlink()
    assert_line(run("evaluate", workspace, *data), "no selected.pt: FedAvgController has no common model")


def test_an_unfinished_run_is_marked_as_unfinished(run, trained, listed):
    workspace, data = trained(status="failed"), listed("nevus")
    (workspace / "results" / "selected.pt").unlink()
    assert_line(run("evaluate", workspace, *data), r"the run is not finished \(status failed\)")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "summary.json is not valid JSON"),
        ("[]", "summary.json must be a JSON object, got list"),
        ('{"status": "finished", "configuration": {}}', "does not say what the model was trained for"),
        (json.dumps({"format": 2, "configuration": {"problem": PROBLEM}}), "status must be text, got None"),
        (None, "there is no .*summary.json, which says what the model was trained for"),
    ],
)
def test_an_incomplete_summary_is_refused(run, trained, listed, content, message):
    workspace = trained()
    path = workspace / "results" / "summary.json"
    if content is None:
        path.unlink()
    else:
        path.write_text(content)
    assert_line(run("evaluate", workspace, *listed("nevus", "melanoma")), message)


def test_a_missing_part_is_named(run, trained, listed, sites_dir, tmp_path):
    data = listed("nevus")
    assert_line(run("evaluate", tmp_path / "none", *data), f"{tmp_path / 'none'} does not exist")
    assert_line(
        run("evaluate", trained(), *data[:3], tmp_path / "nothing"), "--root: there is no file or folder .*nothing"
    )
    wrong = run("evaluate", tmp_path / "trained", "--sites-dir", sites_dir(2), "--site", "site-3")
    assert_line(wrong, "has no site 'site-3'; it has site-1, site-2")


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--sites-dir", "a", "--manifest", "b", "--root", "c"],
        ["--sites-dir", "a", "--root", "c"],
        ["--manifest", "b"],
        ["--manifest", "b", "--root", "c", "--site", "d"],
        ["--sites-dir", "a", "--groups", "bad"],
        ["--sites-dir", "a", "--groups", "bad=;good=nevus"],
        ["--sites-dir", "a", "--groups", "bad=nevus;bad=melanoma"],
    ],
)
def test_incomplete_arguments_are_wrong_use(run, arguments):
    assert run("evaluate", "runs/none", *arguments).exit_code == 2


def test_groups_of_classes_have_no_sheet_of_errors(run, trained, listed, tmp_path):
    arguments = [*listed("good", "bad", "bad"), "--groups", GROUPS, "--failures", tmp_path / "e.png"]
    result = run("evaluate", trained(), *arguments)
    assert result.exit_code == 2
    assert not (tmp_path / "out").exists()
    assert "errors and offsets are of classes" in " ".join(result.stderr.replace("│", " ").split())


@pytest.fixture
def validated(trained, images, tmp_path):
    """A finished run whose site has left predictions for its validation images, and digests of other images."""
    workspace = trained(contributions={"hospital": 2})
    site = workspace / "results" / "hospital"
    site.mkdir()
    generator = np.random.default_rng(1)
    rows = ["image,label,predicted,probability_nevus,probability_melanoma,case"]
    for number in range(40):
        label, shift = (("nevus", 0.0), ("melanoma", 0.05))[number % 2]
        melanoma = round(0.2 + shift + 0.3 * float(generator.random()), 6)
        rows.append(f"v{number}.png,{label},nevus,{1 - melanoma:.6f},{melanoma:.6f},{number}")
    (site / "predictions_validation.csv").write_text("\n".join(rows) + "\n")
    (site / "image_digests.json").write_text(json.dumps({"images": ["00"]}))
    return workspace


def test_a_positive_group_has_an_operating_point_of_the_runs_validation_images(run, validated, listed, tmp_path):
    arguments = [*listed(*["nevus", "melanoma"] * 15), "--positive", "melanoma", "--name", "Clinic A"]
    more = ["--prevalence", "0.02", "--recalibrate", "0.4", "--out", tmp_path / "a.json"]
    result = run("evaluate", validated, *arguments, *more)
    assert result.exit_code == 0, result.output
    assert "operating point" not in result.stderr
    found = json.loads((tmp_path / "a.json").read_text())
    fixed = found["group"]["operating"]["fixed"]
    assert fixed["source"] == "40 validation images of 1 training sites"
    assert fixed["sensitivity"] == 0.9
    assert found["place"] == "Clinic A"
    assert [entry["prevalence"] for entry in found["group"]["operating"]["at_prevalence"]] == [0.5, 0.02]
    assert found["group"]["recalibration"]["fitted_images"] == 12
    assert found["group"]["calibration"].keys() == {"slope", "intercept", "ece", "brier"}
    assert "Operating point, from 40 validation images of 1 training sites" in result.stdout


def test_without_validation_images_there_is_no_operating_point(run, trained, listed):
    arguments = [*listed(*["nevus", "melanoma"] * 12), "--positive", "melanoma"]
    result = run("evaluate", trained(), *arguments, "--json")
    assert "\nthere is no operating point: the run has no predictions for its sites' validation" in result.stderr
    assert json.loads(result.stdout)["external"]["group"]["operating"] is None
    stated = run("evaluate", trained.workspace, *arguments, "--threshold", "0.5", "--json")
    assert json.loads(stated.stdout)["external"]["group"]["operating"]["fixed"]["threshold"] == 0.5


def test_too_few_positive_validation_images_are_counted_and_other_errors_come_first(run, validated, listed):
    predicted = validated / "results" / "hospital" / "predictions_validation.csv"
    table = pd.read_csv(predicted)
    table.drop(table.index[table["label"] == "melanoma"][7:]).to_csv(predicted, index=False)
    arguments = ["--positive", "melanoma"]
    result = run("evaluate", validated, *listed(*["nevus", "melanoma"] * 12), *arguments)
    assert result.exit_code == 0, result.output
    assert re.search(
        r"there is no operating point: .* have 7 positive cases and 20 others, and at least 10 of each", result.stderr
    )
    assert_line(run("evaluate", validated, *listed("nevus", "scc"), *arguments), "'scc' is not one of the classes")


def test_no_count_below_the_minimum_is_written_and_none_follows_from_the_others(run, trained, listed, tmp_path):
    labels = ["nevus"] * 30 + ["melanoma"] * 4
    assert run("evaluate", trained(), *listed(*labels), "--out", tmp_path / "a.json").exit_code == 0
    found = json.loads((tmp_path / "a.json").read_text())
    assert found["classes"] == {"nevus": None, "melanoma": None}
    assert not [number for number in counts_in(found) if 0 < number < 10]
    assert (
        run("evaluate", trained.workspace, *listed(*labels), "--out", tmp_path / "b.json", "--minimum", 1).exit_code
        == 0
    )
    assert json.loads((tmp_path / "b.json").read_text())["classes"] == {"nevus": 30, "melanoma": 4}


def counts_in(content):
    """All counts of plain values: entries named cases, images or n, and those of tables of counts."""
    if isinstance(content, dict):
        for key, value in content.items():
            if key in ("cases", "images", "n", "positive", "other", "classes") and isinstance(value, int):
                yield value
            yield from counts_in(value)
    elif isinstance(content, list):
        for value in content:
            yield from counts_in(value)


def test_images_of_the_run_are_refused_by_their_pixels(run, validated, listed, tmp_path):
    arguments = listed("nevus", "melanoma")
    pixels = np.array(Image.open(tmp_path / "images" / "clinic" / "0.png"))
    digests = {"images": [pixel_digest(pixels)]}
    (validated / "results" / "hospital" / "image_digests.json").write_text(json.dumps(digests))
    assert_line(
        run("evaluate", validated, *arguments), "1 of the images are images of the run's sites, so this is no external"
    )
    assert "WARNING: 1 of the images" in run("evaluate", validated, *arguments, "--allow-overlap").stderr


def test_sites_whose_images_cannot_be_compared_are_named(run, trained, listed):
    result = run("evaluate", trained(contributions={"hospital": 2}), *listed("nevus"))
    assert "whether images are among those of hospital is not known" in result.stderr


def test_errors_are_drawn_for_the_place(run, trained, listed, tmp_path):
    result = run(
        "evaluate", trained(), *listed(*["nevus", "melanoma"] * 3), "--failures", tmp_path / "f" / "errors.png"
    )
    assert result.exit_code == 0, result.output
    assert Image.open(tmp_path / "f" / "errors.png").size[0] > 300


def test_subgroups_are_of_the_further_columns(run, trained, images, tmp_path):
    names = images("clinic", 48)
    records = [
        Record(name, ("nevus", "melanoma")[number % 2], "test", more=(("sex", "fm"[number // 24]),))
        for number, name in enumerate(names)
    ]
    write_manifest(records, tmp_path / "clinic.csv")
    arguments = ["--manifest", tmp_path / "clinic.csv", "--root", tmp_path / "images", "--positive", "melanoma"]
    found = json.loads(run("evaluate", trained(), *arguments, "--threshold", "0.5", "--json").stdout)["external"]
    assert [(entry["column"], entry["value"], entry["positive"]) for entry in found["subgroups"]] == [
        ("sex", "f", 12),
        ("sex", "m", 12),
    ]
    assert found["subgroups"][0]["sensitivity"]["cases"] == 12


@pytest.mark.parametrize(
    "arguments",
    [["--prevalence", "0.1"], ["--recalibrate", "0.3"], ["--positive", "melanoma", "--prevalence", "1.5"]],
)
def test_options_of_a_positive_group_are_checked_first(run, trained, listed, arguments):
    assert run("evaluate", trained(), *listed("nevus"), *arguments).exit_code == 2


@pytest.mark.parametrize("how", ["labels:10", "head:10", "shares", "shares:nevus=0.4,melanoma=0.6"])
def test_a_model_is_adapted_to_the_place_and_scored_on_the_rest(run, validated, listed, tmp_path, how):
    data = listed(*["nevus", "melanoma"] * 15)
    result = run("evaluate", validated, *data, "--recalibrate", how, "--out", tmp_path / "a.json")
    assert result.exit_code == 0, result.output
    assert re.search(r"│ adapted +│ +(20|30) │", result.stdout)
    assert ("offset" in result.stdout) is not how.startswith("head")
    again = json.loads(run("evaluate", validated, *data, "--recalibrate", how, "--json").stdout)
    assert again["adapted"]["images"] == (10 if how.endswith(":10") else 0)
    assert again["external"]["adapted"] == json.loads((tmp_path / "a.json").read_text())["adapted"]


def test_what_an_adaptation_needs_is_said(run, trained, listed):
    data = listed(*["nevus", "melanoma"] * 10)
    assert_line(
        run("evaluate", trained(), *data, "--recalibrate", "labels:11"), "11 of 20 labelled images would be fitted on"
    )
    assert_line(
        run("evaluate", trained.workspace, *data, "--recalibrate", "shares"), "the run has no predictions for its"
    )
    assert run("evaluate", trained.workspace, *data, "--recalibrate", "labels").exit_code == 2
    groups = listed("good", "bad", "bad")
    assert run("evaluate", trained.workspace, *groups, "--groups", GROUPS, "--recalibrate", "labels:10").exit_code == 2


def test_a_network_with_more_than_a_linear_layer_at_its_end_keeps_it(run, trained, listed, monkeypatch):
    head = nn.Sequential(nn.Linear(3, 2), nn.Tanh())
    nn.init.constant_(head[0].weight, 20.0)
    network = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), head).eval()
    monkeypatch.setattr(prediction, "trained_models", lambda *arguments: lambda images: network)
    result = run("evaluate", trained(), *listed(*["nevus", "melanoma"] * 10), "--recalibrate", "head:10")
    assert_line(result, "--recalibrate head: the last layer of compact is not linear in what it reads; take labels:N")


def test_unknown_positive_classes_are_named(run, trained, listed):
    result = run("evaluate", trained(), *listed("nevus"), "--positive", "melanom")
    assert_line(result, "--positive: 'melanom' is not one of the classes nevus, melanoma; did you mean 'melanoma'")
    assert_line(run("evaluate", trained.workspace, *listed("nevus"), "--positive", "nevus,melanoma"), "not all of them")


def test_a_model_of_another_network_than_in_the_summary_is_refused(run, trained, listed):
    changed = {"method": "FedAvgController", "problem": {**PROBLEM, "classes": ["nevus", "melanoma", "c"]}}
    assert_line(run("evaluate", trained(configuration=changed), *listed("nevus")), "with 3 classes")


FIGURES = {"size": 7.0, "aspect": 0.0, "middle": 0.0, "fine detail": 0.0, "coarse detail": 0.0}
FIGURES |= dict.fromkeys(("red", "green", "blue"), 127.0)
FIGURES |= {f"contrast in {name}": 74.0 for name in ("red", "green", "blue")}


def test_how_far_the_images_are_from_the_training_images_is_said_before_a_label_is_used(run, trained, listed):
    moments = {"sites": ["a"], "figures": {name: [value, 0.5] for name, value in FIGURES.items()}}
    data = listed(*["nevus"] * 12)
    found = run("evaluate", trained(image_moments=moments), *data, "--json")
    assert found.exit_code == 0, found.output
    shifts = json.loads(found.stdout)["external"]["appearance"]["figures"]
    assert [one["name"] for one in shifts] == list(FIGURES)
    sides = {Image.open(path).size for path in (data[3] / "clinic").iterdir()}
    ((side, _),) = sides
    assert shifts[0]["deviations"] == pytest.approx((np.log2(side) - 7) / 0.5, abs=0.01)
    assert found.stderr.startswith("The images are unlike the training images: ")
    caveats = json.loads(found.stdout)["external"]["caveats"]
    assert any(one.startswith("The images are unlike the training images: ") for one in caveats)
    shown = run("evaluate", trained.workspace, *data)
    assert re.search(r"│ size +│ +\d+ │ +128 │", shown.stdout)
    predicted = run("predict", trained.workspace, data[3])
    assert predicted.exit_code == 0
    assert predicted.stderr.startswith("The images are unlike the training images: ")


def test_moments_that_the_run_has_not_are_unavailable_with_the_reason(run, trained, listed):
    data = listed(*["nevus"] * 12)
    found = run("evaluate", trained(image_moments={"unavailable": "no site has released image_moments"}), *data)
    reason = "is unavailable: no site has released image_moments.\n"
    assert found.stderr == f"Whether the images are like the training images {reason}"
    assert " ".join(reason.split()) in " ".join(found.stdout.split())
    few = run("evaluate", trained.workspace, *data, "--minimum", "20", "--json")
    assert json.loads(few.stdout)["external"]["appearance"] is None
