import io
import json
import zipfile
from pathlib import Path

import pytest
from rich.console import Console

from grandrounds.commands.partition import reading_progress, what_next

HEADER = "image,label,split,patient,source\n"


@pytest.fixture
def pictures(tmp_path, images):
    names = images("all", 64)
    rows = [f"{name},{('nevus', 'melanoma')[i % 2]},train,p{i},clinic-{i % 2}" for i, name in enumerate(names)]
    table = tmp_path / "all.csv"
    table.write_text(HEADER + "\n".join(rows) + "\n")
    return ["manifest", "--root", tmp_path / "images", "--manifest", table, "--dataset-name", "skin"]


def test_partition_shows_every_site_and_where_it_is(run, pictures, tmp_path):
    result = run("partition", *pictures, "--sites", 2, "--out", tmp_path / "sites")
    assert result.exit_code == 0, result.output
    digest = json.loads((tmp_path / "sites" / "partition.json").read_text())["sites"]["site-2"]["sha256"]
    row = next(line for line in result.stdout.splitlines() if "site-2" in line)
    # 32 images of clinic-1: a half for training, a quarter of that labelled, an eighth for validation, the rest for tests.
    cells = [cell.strip() for cell in row.strip("│").split("│")]
    assert cells[:6] == ["site-2", "clinic-1", "16", "4", "4", "12"]
    assert cells[-1] == digest[:12]


def test_partition_as_json_is_the_description_on_disk(run, pictures, tmp_path):
    result = run("partition", *pictures, "--scheme", "iid", "--sites", 4, "--out", tmp_path / "sites", "--json")
    assert json.loads(result.stdout) == json.loads((tmp_path / "sites" / "partition.json").read_text())


def test_another_partition_is_replaced_only_when_asked(run, pictures, tmp_path):
    command = ["partition", *pictures, "--sites", 2, "--out", tmp_path / "sites"]
    assert run(*command).exit_code == 0
    refused = run(*command, "--seed", 2)
    assert refused.exit_code == 1
    assert "holds another partition" in refused.stderr
    assert run(*command, "--seed", 2, "--overwrite").exit_code == 0


def test_a_manifest_without_a_column_is_one_line_with_file_and_column(run, pictures, tmp_path):
    table = Path(pictures[4])
    table.write_text("image,label,split\nall/0.png,nevus,train\n")
    result = run("partition", *pictures, "--out", tmp_path / "sites")
    _one_line(result, f"{table}.*patient")


def test_a_label_outside_the_vocabulary_is_one_line_with_file_and_line(run, pictures, tmp_path):
    result = run("partition", *pictures, "--out", tmp_path / "sites", "--classes", "nevus,melanom")
    _one_line(result, "all.csv line 3, column label: 'melanoma' is not one of the classes.*did you mean 'melanom'")


def test_a_patient_in_two_splits_is_one_line_with_both_lines(run, pictures, tmp_path):
    table = Path(pictures[4])
    table.write_text(HEADER + "all/0.png,nevus,train,p1,c\nall/1.png,nevus,test,p1,c\n")
    result = run("partition", *pictures, "--out", tmp_path / "sites")
    _one_line(result, r"patient 'p1' is in two splits, train \(line 2\) and test \(line 3\)")


def test_scenario_and_server_are_given_to_the_recipe(run, pictures, tmp_path):
    few = run(
        *["partition", *pictures, "--sites", 2, "--out", tmp_path / "few", "--server-images", 8, "--json"],
        *["--scenario", "few_labels", "--labelled-sites", "site-2", "--few-labels-use", "labelled"],
    )
    description = json.loads(few.stdout)
    assert {key: description[key] for key in ("scenario", "labelled_sites", "few_labels_use", "server_images")} == {
        "scenario": "few_labels",
        "labelled_sites": ["site-2"],
        "few_labels_use": "labelled",
        "server_images": 8,
    }
    server = run(
        *["partition", *pictures, "--sites", 2, "--out", tmp_path / "server", "--server-images", 8, "--json"],
        *["--scenario", "server_labels", "--server-training", 0.5],
    )
    assert json.loads(server.stdout)["sites"]["server"]["images"] == {"train": 4, "val": 4, "test": 0}


def test_the_command_line_and_the_recipe_draw_the_same_random_numbers(run, pictures, tmp_path):
    from grandrounds.data.partition.make import make_partition

    drawn = run("partition", *pictures, "--scheme", "iid", "--sites", 2, "--out", tmp_path / "a", "--json")
    root, table = pictures[2], pictures[4]
    same = make_partition("manifest", root, "iid", 2, tmp_path / "b", manifest=table, dataset_name="skin")
    assert json.loads(drawn.stdout)["sites"] == same["sites"]


def test_an_unseen_site_is_for_evaluation_and_not_for_training(run, pictures, tmp_path):
    result = run("partition", *pictures, "--scheme", "unseen", "--out", tmp_path / "unseen")
    assert result.exit_code == 0, result.output
    assert f"grandrounds evaluate RUN --sites-dir {tmp_path / 'unseen'}" in result.stdout
    assert "simulate" not in result.stdout
    assert "simulate" in run("partition", *pictures, "--sites", 2, "--out", tmp_path / "sites").stdout


def test_sites_without_labels_are_not_sent_to_a_job_that_needs_them(run, pictures, tmp_path):
    options = ["--sites", 2, "--out", tmp_path / "few", "--scenario", "few_labels", "--labelled-sites", "site-1"]
    result = run("partition", *pictures, *options)
    assert result.exit_code == 0, result.output
    assert "grandrounds jobs" in result.stdout
    assert "simulate" not in result.stdout


@pytest.mark.parametrize(
    ("facts", "job"),
    [
        ({"dataset": "ham10000"}, "fedperl --sites-dir"),
        ({"dataset": "ham10000_malignancy"}, "fed_align_cl --sites-dir"),
        ({"dataset": "inbreast", "preprocess": "mammogram"}, "fed_align_cl --set problem.channels=1"),
        ({"dataset": "pbc", "public_set": {}}, "mdhfl --sites-dir"),
    ],
)
def test_the_job_that_was_made_for_a_data_set_is_named(facts, job):
    site = {"images": {"train": 3, "val": 1, "test": 1}}
    said = what_next({"dataset_name": "images", "sites": {"site-1": site}, **facts}, Path("out"))
    assert any(f"grandrounds simulate {job}" in line for line in said)


def test_counts_that_were_scaled_are_said():
    description = {
        "dataset_name": "lesions",
        "scaled": {"ISIC2019": {"needed": 20254, "found": 15316}},
        "sites": {"site-1": {"images": {"train": 3, "val": 1, "test": 1}}},
    }
    said = "ISIC2019 has 15316 images, the published counts need 20254: counts are scaled"
    assert said in what_next(description, Path("out"))


@pytest.mark.parametrize(
    "words",
    [
        "--scenario server_labels",
        "--scenario few_labels",
        "--variant paper",
        "partition isic2020",
        "partition isic2018",
        "--client-partition slice",
        "--windows 40:80,80:200,40:380",
        "partition matek19",
        "partition pbc",
        "--noise symmetric --noise-rate 0.2 --public mll23",
    ],
)
def test_help_has_an_example_for_every_scenario_and_data_set(run, words):
    assert words in " ".join(run("partition", "--help").stdout.split())


def test_preprocessing_is_given_to_the_sites(run, pictures, tmp_path):
    command = ["partition", *pictures, "--sites", 2, "--out", tmp_path / "sites", "--json", "--preprocess", "mammogram"]
    assert json.loads(run(*command).stdout)["preprocess"] == "mammogram"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--preprocess mammogram", "preprocess is for the data set manifest; leave it out for cmmd"),
        ("--birads-3 drop", "birads_3 is for the data sets inbreast and mammograms; leave it out for cmmd"),
        ("--normals drop", "normals is for the data sets inbreast and mini_mias and mammograms; leave it out for cmmd"),
        ("--published-test", "published_test is for the data sets cbis_ddsm and mammograms; leave it out for cmmd"),
        ("--simulated-vendors films", "simulated_vendors is for the data set mini_mias; leave it out for cmmd"),
    ],
)
def test_choices_of_other_mammograms_are_refused(run, tmp_path, words, said):
    command = ["partition", "cmmd", "--root", tmp_path, "--out", tmp_path / "sites", *words.split()]
    _one_line(run(*command), said)


def test_windows_are_given_to_the_sites(run, pictures, tmp_path):
    command = ["partition", *pictures, "--sites", 2, "--out", tmp_path / "sites", "--json", "--windows"]
    assert json.loads(run(*command, "40:80,-600:1500,40:380").stdout)["windows"] == [[40, 80], [-600, 1500], [40, 380]]
    _one_line(run(*command, "40:0"), "windows: the width of a window must be at least 1 Hounsfield unit, got 0.0")
    for wrong in ("40", "40:80:1", "a:b", ""):
        result = run(*command, wrong)
        assert result.exit_code == 2
        assert "CENTRE:WIDTH" in result.stderr


def test_choices_of_one_data_set_reach_the_recipe(run, pictures, tmp_path):
    for option, value in (
        ("--group-by", "image"),
        ("--multi", "first"),
        ("--slices", 5),
        ("--patients", tmp_path / "p.csv"),
        ("--client-partition", "slice"),
    ):
        result = run("partition", *pictures, "--out", tmp_path / "sites", option, value)
        _one_line(result, f"{option[2:].replace('-', '_')} is for the data sets? .*; leave it out for manifest")


def test_a_partition_for_mutual_learning_takes_its_choices(run, tmp_path):
    rows = "".join(f"{label}/{n}.jpg,{label},PBC\n" for label in ("basophil", "ig") for n in range(40))
    (tmp_path / "pbc_barcelona_manifest.csv").write_text("image,label,source\n" + rows)
    with zipfile.ZipFile(tmp_path / "pbc_barcelona_96.zip", "w") as archive:
        for row in rows.splitlines():
            archive.writestr(row.split(",")[0], row)
    out = tmp_path / "sites"
    command = ["partition", "pbc", "--root", tmp_path, "--out", out, "--sites", 2, "--test", 0.5, "--validation", 0]
    noisy = ["--noise", "pair", "--noise-rate", 1, "--public-share", 0.25, "--private-images", 40]
    made = json.loads(run(*command, *noisy, "--json").stdout)
    assert made["public_set"]["images"] == 20
    assert [site["images"] for site in made["sites"].values()] == [{"train": 10, "val": 0, "test": 20}] * 2
    assert [site["wrong_labels"] for site in made["sites"].values()] == [10, 10]
    shown = run(*command, *noisy)
    assert "grandrounds simulate mdhfl --sites-dir" in " ".join(shown.stdout.split())
    _one_line(run(*command, "--public", "folder"), "public folder needs public_root, where its images are")


def test_the_reading_of_headers_is_told_in_lines_where_there_is_no_terminal():
    stream = io.StringIO()
    with reading_progress(Console(file=stream, width=200)) as tell:
        for done in range(0, 101):
            tell(done, 100)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "reading patients from DICOM headers: 0 of 100"
    assert lines[-1] == "reading patients from DICOM headers: 100 of 100"
    assert len(lines) == 11
    bar = io.StringIO()
    with reading_progress(Console(file=bar, force_terminal=True, width=100)) as tell:
        tell(50, 100)
    assert "50%" in bar.getvalue()


def _one_line(result, pattern):
    import re

    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert re.match(f"error: .*{pattern}", result.stderr), result.stderr
