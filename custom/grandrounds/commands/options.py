"""Options that several commands share, and the job that follows from them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from grandrounds.deployment.jobs import Job

JobName = Annotated[str, typer.Argument(metavar="JOB", help="A job's name (see grandrounds jobs) or its folder.")]
SitesDir = Annotated[Path | None, typer.Option(help="Folder of a partition; without it sites draw phantom images.")]
Sites = Annotated[int | None, typer.Option(min=1, help="Number of sites; default: all of the partition, or 4.")]
Rounds = Annotated[int | None, typer.Option(min=1, help="Short for --set controller.rounds=N.")]
ImageSize = Annotated[int | None, typer.Option(min=1, help="Short for --set problem.image_size=N, in pixels.")]
Backbone = Annotated[str | None, typer.Option(help="Short for --set problem.backbone=NAME.")]
Seed = Annotated[int | None, typer.Option(help="Short for --set controller.seed=N.")]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="PART.OPTION=VALUE", help="Set an option of the controller, executor or problem; repeatable."
    ),
]
Preset = Annotated[
    str | None,
    typer.Option(help="Named options of the job, such as paper, code or recommended; several in order: paper,rhfl."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else on the standard output.")]


def comma_separated(text: str | None) -> list[str] | None:
    """The parts of ``a,b,c``, without blanks around them; None stays None.

    Example:
        >>> comma_separated("melanoma, nevus")
        ['melanoma', 'nevus']
    """
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


def assignments_of(
    rounds: int | None,
    image_size: int | None,
    backbone: str | None,
    seed: int | None,
    assignments: Sequence[str] | None,
) -> list[str]:
    """All options as ``part.option=value``; what was set by ``--set`` comes last and wins.

    Example:
        >>> assignments_of(3, None, None, 7, ["controller.peers=1"])
        ['controller.rounds=3', 'controller.seed=7', 'controller.peers=1']
    """
    short = {
        "controller.rounds": rounds,
        "problem.image_size": image_size,
        "problem.backbone": backbone,
        "controller.seed": seed,
    }
    return [*(f"{key}={value}" for key, value in short.items() if value is not None), *(assignments or [])]


def configured_job(
    job: str, sites: int | None, sites_dir: Path | None, assignments: Sequence[str], preset: str | None = None
) -> tuple[Job, list[str]]:
    """The job with its final options, checked, and the names of its sites.

    Data set and classes are the partition's, unless they are assigned.

    Raises:
        GrandRoundsError: if the job, an option or the partition is not as it must be.
    """
    from grandrounds.deployment.jobs import check_job, load_job
    from grandrounds.deployment.presets import with_preset
    from grandrounds.deployment.simulate import choose_sites

    names, problem = choose_sites(sites, sites_dir)
    loaded = load_job(job)
    loaded.options("problem").update(problem)
    configured = with_preset(loaded, preset, assignments)
    check_job(configured)
    return configured, names
