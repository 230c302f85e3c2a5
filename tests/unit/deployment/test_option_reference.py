"""The reference of all options is generated, and the committed page is the current one."""

from pathlib import Path

import pytest

from grandrounds.deployment.jobs import class_of, job_names, load_job
from grandrounds.deployment.option_reference import option_reference, options_of
from grandrounds.option_keys import option_types

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "options.md"


def test_the_committed_page_is_current():
    assert PAGE.read_text(encoding="utf-8") == option_reference(), "run: python docs/generate.py"


@pytest.mark.parametrize("name", job_names())
def test_every_option_of_a_job_has_a_meaning(name):
    job = load_job(name)
    for part, entry in (("controller", job.controller), ("executor", job.executor)):
        described = {option.name: option.meaning for option in options_of(job, part)}
        assert set(described) == set(option_types(class_of(entry["path"]))) - {"problem"}
        assert all(described.values()), part


def test_the_options_of_a_job_are_in_the_order_of_its_file():
    job = load_job("mdhfl")
    assert [option.name for option in options_of(job, "executor")] == list(job.options("executor"))
