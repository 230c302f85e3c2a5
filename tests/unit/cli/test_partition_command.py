import json
from pathlib import Path

import pytest

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


def _one_line(result, pattern):
    import re

    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert re.match(f"error: .*{pattern}", result.stderr), result.stderr
