"""``grandrounds jobs``: what there is to run."""

from __future__ import annotations

import json as json_text
from typing import TYPE_CHECKING, Any

from grandrounds.commands.options import Json
from grandrounds.commands.output import results, say, say_json

if TYPE_CHECKING:
    from grandrounds.deployment.jobs import Job

HELP = """List the jobs that come with the package's source: their methods and options.

[bold]Examples[/bold]

\b
  grandrounds jobs
  grandrounds jobs --json
"""


def jobs(json: Json = False) -> None:
    """List the jobs."""
    from grandrounds.deployment.jobs import job_names, load_job

    described = [describe(load_job(name)) for name in job_names()]
    if json:
        say_json(described)
        return
    console = results()
    for job in described:
        say(console, f"{job['name']}: {job['controller']} with {job['executor']}")
        for part, options in job["options"].items():
            say(console, f"  {part}: " + ", ".join(f"{key}={_text(value)}" for key, value in options.items()))
    say(console, "\nto run one: grandrounds simulate NAME; to change an option: --set PART.OPTION=VALUE")


def describe(job: Job) -> dict[str, Any]:
    """Name, classes and options of a job, as plain values."""
    controller = {key: value for key, value in job.options("controller").items() if key != "problem"}
    return {
        "name": job.name,
        "controller": job.controller["path"].rpartition(".")[2],
        "executor": job.executor["path"].rpartition(".")[2],
        "options": {"controller": controller, "executor": job.options("executor"), "problem": job.options("problem")},
    }


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json_text.dumps(value)
