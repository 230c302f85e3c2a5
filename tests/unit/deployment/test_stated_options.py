"""A job's files state what differs from the defaults; what is loaded, shown and sent to hospitals states every option."""

import json
import re
from pathlib import Path

import pytest

from grandrounds.deployment.jobs import CHECKOUT_JOBS, JOB_PARTS, job_names, load_job, options_of, read_job
from grandrounds.deployment.presets import presets_of, values_in
from grandrounds.errors import ConfigurationError
from grandrounds.option_keys import option_defaults
from grandrounds.options import Tier

ROOT = CHECKOUT_JOBS.parent
OWN_WORDS = ("benchmarks", "examples", "poc", "docs")


@pytest.mark.parametrize("name", job_names())
def test_a_file_states_what_differs_from_the_defaults_and_a_loaded_job_everything(name):
    written, full = read_job(name), load_job(name)
    assert full.in_full() == full
    for part in JOB_PARTS:
        stated, defaults = dict(written.options(part)), option_defaults(full.component(part))
        assert not [option for option, value in stated.items() if option in defaults and value == defaults[option]]
        plain = json.loads(json.dumps(defaults))
        assert full.options(part) == {
            **plain,
            **stated,
            **({"problem": full.options("problem")} if part == "controller" else {}),
        }


def test_an_option_of_a_wrong_name_stays_for_the_check():
    job = read_job("fedperl")
    job.options("executor")["stepz"] = 3
    full = job.in_full()
    assert full.value("executor", "steps") == 12
    assert full.options("executor")["stepz"] == 3
    with pytest.raises(ConfigurationError, match="stepz"):
        full.checked()


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
    used = {(part, option) for name in job_names() for part in JOB_PARTS for option in read_job(name).options(part)}
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
