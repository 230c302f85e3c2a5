"""``grandrounds build``: a job's folder, as FLARE takes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from grandrounds.commands.options import (
    Assignments,
    Backbone,
    ImageSize,
    JobName,
    Preset,
    Rounds,
    Seed,
    Sites,
    SitesDir,
    assignments_of,
    configured_job,
)
from grandrounds.commands.output import results, say

HELP = """Write a job's folder for FLARE's own tools.

Without --byoc the package must be installed wherever the job runs, and FLARE must be told that its classes are allowed.
With --byoc ("bring your own code") the package is in the job; hospitals should refuse such jobs.

[bold]Examples[/bold]

\b
  grandrounds build fedperl --byoc
  grandrounds build fedperl --sites-dir runs/ham/sites --rounds 30 --image-size 64
"""


def build(
    job: JobName,
    byoc: Annotated[bool, typer.Option("--byoc", help="Put the package's code into the job.")] = False,
    out: Annotated[Path, typer.Option(help="The job's folder is made in this one.")] = Path("build/jobs"),
    sites_dir: SitesDir = None,
    sites: Sites = None,
    rounds: Rounds = None,
    image_size: ImageSize = None,
    backbone: Backbone = None,
    seed: Seed = None,
    preset: Preset = None,
    assignments: Assignments = None,
) -> None:
    """Write a job's folder and say how to run it."""
    from grandrounds.deployment.jobs import write_job
    from grandrounds.deployment.simulate import allowed_classes
    from grandrounds.federation.paths import SITES_VARIABLE

    options = assignments_of(rounds, image_size, backbone, seed, assignments)
    configured, names = configured_job(job, sites, sites_dir, options, preset)
    folder = write_job(configured, out / configured.name, byoc)
    console = results()
    say(console, f"{folder} is written; to run it here:")
    variable = f"{SITES_VARIABLE}={sites_dir.absolute()} " if sites_dir else ""
    say(console, f"  {variable}nvflare simulator {folder} -w WORKSPACE -n {len(names)} -t 2")
    if not byoc:
        say(console, "before, so that FLARE accepts the package's classes, WORKSPACE/local/resources.json must say:")
        say(console, f"  {json.dumps(allowed_classes())}")
