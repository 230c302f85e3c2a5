"""A person edits what a job changes; every value that a hospital reads is generated from it."""

import re
import runpy
from pathlib import Path

import pytest

from grandrounds.deployment.jobs import CHECKOUT_JOBS, JOB_PARTS, job_names, load_job
from grandrounds.deployment.option_reference import options_of
from grandrounds.deployment.presets import presets_of, values_in
from grandrounds.json_files import read_json_object
from grandrounds.option_annotations import Tier

ROOT = CHECKOUT_JOBS.parent
GENERATE = runpy.run_path(str(ROOT / "docs" / "generate.py"))
CHANGES_FILE, changes_of = GENERATE["CHANGES_FILE"], GENERATE["changes_of"]
REMEDY = "run docs/generate.py"
OWN_WORDS = ("benchmarks", "examples", "poc", "docs")


@pytest.mark.parametrize("name", job_names())
def test_the_values_that_a_job_states_are_those_of_its_changes(name):
    for path, text in GENERATE["job_files"](name).items():
        assert path.read_text() == text, REMEDY
    assert changes_of(load_job(name)) == read_json_object(CHECKOUT_JOBS / name / CHANGES_FILE)


def test_without_changes_every_option_has_its_default():
    job = load_job("fedperl")
    bare = GENERATE["with_all_values"](job, {"controller": {"rounds": 3}})
    assert bare.value("executor", "steps") == 26
    assert changes_of(bare)["controller"]["rounds"] == 3
    assert "steps" not in changes_of(bare)["executor"]


@pytest.mark.parametrize("name", job_names())
def test_a_first_user_is_shown_at_most_fifteen_options(name):
    shown = [
        info.name for part in JOB_PARTS for info in options_of(load_job(name), part) if info.tier is not Tier.EXPERT
    ]
    assert {"rounds", "seed", "backbone", "image_size"} <= set(shown)
    assert len(shown) <= 15


def test_no_option_is_idle():
    """Each is changed by a job or a preset, set by a benchmark or an example, or a page says when to use it."""
    jobs = [load_job(name) for name in job_names()]
    known = {(part, info.name) for job in jobs for part in JOB_PARTS for info in options_of(job, part)}
    used = {key for job in jobs for key in values_in(changes_of(job))}
    used |= {key for job in jobs for parts in presets_of(job).values() for key in values_in(parts)}
    words = set(re.findall(r"\w+", "\n".join(map(Path.read_text, _pages()))))
    idle = sorted(".".join(key) for key in known - used if key[1] not in words)
    assert not idle, f"remove these options, or let a page of docs/ say when to use them: {', '.join(idle)}"


def _pages():
    files = [path for folder in OWN_WORDS for path in (ROOT / folder).rglob("*") if "results" not in path.parts]
    return [
        path
        for path in files
        if path.suffix in (".py", ".md", ".json", ".yml") and path.name not in ("options.md", "command-line.md")
    ]
