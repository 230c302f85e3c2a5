"""What a forge and PyPI show and run: workflows, templates, the package's page, the citation."""

import re
import stat
import tomllib
from importlib.util import find_spec

import pytest
import yaml

from tests.documentation.pages import ROOT, commands, text_of
from tests.documentation.parsing import check_command

GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
FORMS = sorted(path for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
SHELL = {"cd", "cyclonedx-py", "grep", "pip", "tee", "twine"}
"""Programs of the runner, and those that a step installs first."""
PINNED = re.compile(r"[\w.-]+/[\w./-]+@(v\d+(\.\d+)*|release/v\d+|[0-9a-f]{40})")
PROJECT = tomllib.loads(text_of("pyproject.toml"))


def read_yaml(path):
    return yaml.load(path.read_text(), yaml.BaseLoader)  # "on" stays a word


def steps(workflow):
    return [step for job in read_yaml(workflow)["jobs"].values() for step in job["steps"]]


def named(path):
    return path.name


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=named)
def test_a_workflow_has_few_rights_and_pinned_actions(workflow):
    content = read_yaml(workflow)
    assert content["on"]
    assert set(dict(content["permissions"] or {}).values()) <= {"read"}
    for step in steps(workflow):
        assert "run" in step or PINNED.fullmatch(step["uses"]), f"{step} names no version"


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=named)
def test_every_command_of_a_workflow_exists_here(workflow, examples):
    for step in steps(workflow):
        script = re.sub(r"[()]", " ", re.sub(r"\$\(.*?\)", "", step.get("run", "")))
        for command in commands(script, {}):
            program, *rest = command.words
            if program.rpartition("/")[2] in SHELL:
                continue
            if program.startswith("."):
                assert program.startswith(".venv/") or (ROOT / program).stat().st_mode & stat.S_IXUSR, program
            if re.fullmatch(r"(.*/)?python", program) and rest[0] == "-m":
                assert find_spec(rest[1]), f"{workflow.name}: no module {rest[1]}"
            else:
                check_command(command.words)


def test_the_pythons_that_are_offered_are_those_that_are_tested():
    project = PROJECT["project"]
    offered = [text.rpartition(" ")[2] for text in project["classifiers"] if "Python ::" in text]
    assert project["requires-python"] == f">={offered[0]}"
    jobs = read_yaml(GITHUB / "workflows" / "ci.yml")["jobs"].values()
    tested = {
        step["with"]["python-version"]
        for job in jobs
        for step in job["steps"]
        if "python-version" in step.get("with", {})
    }
    more = [version for job in jobs for version in job.get("strategy", {}).get("matrix", {}).get("python", [])]
    assert {one for one in tested if not one.startswith("$")} | set(more) == set(offered)


@pytest.mark.parametrize("form", FORMS, ids=named)
def test_a_form_has_a_name_and_asks_something(form):
    content = read_yaml(form)
    fields = [part for part in content["body"] if part["type"] != "markdown"]
    assert content["name"]
    assert content["description"]
    assert len({field["id"] for field in fields}) == len(fields) > 1
    for field in fields:
        assert field["attributes"]["label"]
        assert re.fullmatch(r"[a-z]+", field["id"])


def test_the_page_on_pypi_has_no_link_to_a_file_of_the_repository():
    hook = PROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    (part,) = hook["fragments"]
    text = text_of(part["path"])
    for rule in hook["substitutions"]:
        text = re.sub(rule["pattern"], rule["replacement"], text)
    assert "Images and labels stay" in text
    assert "https://nvflare.readthedocs.io" in text
    assert not re.findall(r"\]\((?!https://)[^)]*\)", text)
    assert "The top of a report" not in text, "a picture of the repository"


def test_the_citation_has_the_version_that_is_built_without_a_tag():
    citation = yaml.safe_load(text_of("CITATION.cff"))
    assert citation["version"] == PROJECT["tool"]["hatch"]["version"]["fallback-version"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", str(citation["date-released"]))
