"""One recommended command for the sites of a partition, with evidence that is committed."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from grandrounds.api.advising import NOT_MEASURED, RULES, Situation, advise, situation
from grandrounds.commands.options import SimulatedJobArguments
from grandrounds.data.manifest import Record
from grandrounds.data.partition.files import write_partition
from grandrounds.deployment.jobs import load_job
from grandrounds.deployment.presets import with_options, with_preset
from grandrounds.errors import ConfigurationError

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
SITUATION = Situation({"a": 10, "b": 20}, {"a": 0, "b": 0}, {"x": 5, "y": 25})


@pytest.mark.parametrize(
    ("changes", "job"),
    [
        ({}, "ridge"),
        ({"unlabelled": {"a": 100, "b": 100}}, "ridge"),
        ({"labelled": {"a": 10, "b": 0}}, "ridge"),
        ({"labelled": {"a": 10}}, "local"),
        ({"leaves": "updates"}, "fedavg"),
        ({"leaves": "updates", "unlabelled": {"a": 30, "b": 0}}, "fedavg"),
        ({"leaves": "updates", "unlabelled": {"a": 31, "b": 0}}, "ssfl"),
        ({"leaves": "updates", "labelled": {"a": 10, "b": 0}}, "fedirm"),
        ({"leaves": "noisy", "networks": "own"}, "fedavg"),
        ({"networks": "own"}, "local"),
        ({"networks": "own", "public": True}, "mdhfl"),
    ],
)
def test_the_first_rule_that_applies_is_the_advice(changes, job):
    assert advise(replace(SITUATION, **changes)).job == job


def test_the_command_for_one_site_runs_at_one_site():
    assert "controller.min_sites=1" in advise(replace(SITUATION, labelled={"a": 10})).command(Path("sites"))
    assert "min_sites" not in advise(SITUATION).command(Path("sites"))


def test_without_a_label_there_is_no_advice():
    with pytest.raises(ConfigurationError, match="no site has a labelled training image"):
        advise(replace(SITUATION, labelled={"a": 0, "b": 0}))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.advice.job)
def test_every_command_is_a_job_that_can_be_built(rule):
    job, options = load_job(rule.advice.job), list(rule.advice.options)
    pairs = list(zip(options[::2], options[1::2], strict=True))
    preset = next((value for name, value in pairs if name == "--preset"), None)
    short = {name[2:].replace("-", "_"): value for name, value in pairs if name not in ("--preset", "--set")}
    numbers = {name: int(value) if value.isdigit() else value for name, value in short.items()}
    values = SimulatedJobArguments(job=job.name, **numbers).values()
    assert with_options(with_preset(job, preset, values), [value for name, value in pairs if name == "--set"]).checked()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.advice.job)
def test_every_number_of_the_evidence_stands_on_the_page_that_it_names(rule):
    if rule.advice.evidence == NOT_MEASURED:
        return
    for part in rule.advice.evidence.split("benchmarks/")[1:]:
        name = re.match(r"\w+", part)[0]
        page = (BENCHMARKS / name / "README.md").read_text()
        assert (BENCHMARKS / name / "results").is_dir()
        numbers = re.findall(r"\.\d{3}", part)
        assert numbers
        assert [number for number in numbers if number not in page] == []


@pytest.fixture
def folder(tmp_path):
    """Two sites of two devices; the second has no labels."""
    records = {
        "a": [Record("a/1.png", "x", source="one"), Record("a/2.png", "y", "val", source="one")],
        "b": [Record("b/1.png", "x", labelled=False, source="two"), Record("b/2.png", "x", "test", source="two")],
    }
    write_partition(records, tmp_path / "sites", "skin", tmp_path, ("x", "y"), {"scheme": "test"})
    return tmp_path / "sites"


def test_what_the_manifests_say_is_read_from_them(folder):
    found = situation(folder)
    assert (found.labelled, found.unlabelled) == ({"a": 1, "b": 0}, {"a": 0, "b": 1})
    assert (found.classes, found.devices, found.public) == ({"x": 1, "y": 0}, ("one", "two"), False)
    assert found.lines == [
        "2 sites, 1 labelled training images, 1 unlabelled; without any label: b",
        "2 classes; rarest: y (0 labelled)",
        "2 devices: one, two",
    ]


def test_the_command_shows_one_command_with_reason_and_evidence(folder):
    from typer.testing import CliRunner

    from grandrounds.cli import build_app

    result = CliRunner().invoke(build_app("advise"), ["advise", "--sites-dir", str(folder)])
    assert result.exit_code == 0, result.output
    assert f"grandrounds simulate --sites-dir {folder}\n" in result.stdout
    assert "why: " in result.stdout
    assert "evidence: benchmarks/" in result.stdout
    arguments = ["advise", "--sites-dir", str(folder), "--leaves", "updates", "--json"]
    assert json.loads(CliRunner().invoke(build_app("advise"), arguments).stdout)["job"] == "fedirm"
