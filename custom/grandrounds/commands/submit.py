"""``grandrounds submit``: run a job on a real federation, from a description of what it does to its results."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table

from grandrounds.commands.options import JobArguments, Json, comma_separated, takes
from grandrounds.console.output import notes, results, say, say_json, table_of
from grandrounds.errors import ConfigurationError, GrandRoundsError, UsageError
from grandrounds.ordering import natural_sorted

if TYPE_CHECKING:
    from grandrounds.deployment.jobs import CheckedJob, Job, Values
    from grandrounds.deployment.submission import Outcome


@takes(JobArguments)
def submit(
    arguments: JobArguments,
    kit: Annotated[Path, typer.Option(help="Your startup kit.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder for results; default: runs/RUN_NAME.", show_default=False)
    ] = None,
    sites: Annotated[str | None, typer.Option(help="Sites that take part, a,b,c; default: all connected.")] = None,
    mandatory_sites: Annotated[
        str | None, typer.Option(help="Sites that must be connected for the job to start, a,b.")
    ] = None,
    min_sites: Annotated[
        int | None, typer.Option(min=1, help="Minimum number of sites, at the start and in every round.")
    ] = None,
    dataset: Annotated[str | None, typer.Option(help="Short for --set problem.dataset=NAME.")] = None,
    classes: Annotated[str | None, typer.Option(help="The vocabulary, a,b,c, in the order of the outputs.")] = None,
    run_name: Annotated[
        str | None, typer.Option(help="Name of the run; an existing run of this name is resumed.")
    ] = None,
    scope: Annotated[str | None, typer.Option(help="Privacy scope that the job requests from the sites.")] = None,
    gpu_memory: Annotated[
        str | None,
        typer.Option(metavar="SITE=GIB,...", help="GPU memory reserved at a site; without it jobs share the GPU."),
    ] = None,
    start: Annotated[
        Path | None,
        typer.Option(help="Results of a finished run of yours on this server, whose model the rounds start from."),
    ] = None,
    resume: Annotated[
        Literal["auto", "never"],
        typer.Option(help="auto: submit again until the run has finished, and when a site is back."),
    ] = "never",
    resume_from: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="ROUND", help="Go on after this round; an unfinished run lists the kept checkpoints."
        ),
    ] = None,
    attempts: Annotated[int, typer.Option(min=1, help="With --resume auto: maximum number of submissions.")] = 3,
    reference: Annotated[
        bool,
        typer.Option(
            "--reference", help="Then run ridge at the same sites, if their policies let sums out, as the row to beat."
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and show the job; submit nothing.")] = False,
    json: Json = False,
) -> None:
    """Submit a job to a federation, watch it, and download its results.

    The command first shows what will run at each site, what will leave it, and which scores will be withheld because a
    site has few patients of a class: for that it reads the results of the job statistics of the same data set and
    classes, if they are beside the folder for results. With --resume auto it submits an unfinished run again, which
    resumes after the last complete round and includes sites that were away. The run's own summary decides whether it has
    finished.

    Examples:
      grandrounds submit --kit kits/researcher@consortium.example --dataset skin --classes nevus,melanoma
      grandrounds submit fedperl --kit kits/researcher@consortium.example --dry-run
      grandrounds submit fedperl --kit kits/researcher@consortium.example --dataset skin --classes nevus,melanoma
      grandrounds submit fedavg --preset recommended --kit KIT --start runs/ridge/JOB_ID
      grandrounds submit fedperl --kit KIT --mandatory-sites hospital-a --min-sites 3 --resume auto --attempts 3
    """
    from grandrounds.deployment.submission import with_gpu_memory, with_roster
    from grandrounds.federation.server.record import divergence

    run = {("controller", "run_name"): run_name, ("controller", "resume_from"): resume_from}
    if start and ("controller", "start_from") in arguments.values():
        raise UsageError("--start and --set controller.start_from name a model to start from: give one of them")
    run["controller", "start_from"] = _run_and_digest(start) if start else None
    roster = (comma_separated(sites) or [], comma_separated(mandatory_sites) or [], min_sites)
    configured = _configured(arguments, {("problem", "dataset"): dataset, **run}, comma_separated(classes))
    job = with_gpu_memory(with_roster(configured, *roster), _by_site(gpu_memory)).checked()
    if scope:
        job = replace(job, meta={**job.meta, "scope": scope})
    if reference:
        _require_reference(job)
    target = out or Path("runs") / job.run_name
    outcome = _run(job, kit, target, attempts if resume == "auto" else 1, dry_run)
    if outcome is None:
        return
    if reference and outcome.finished:
        _add_reference(job, outcome, kit, target)
    if diverged := divergence(outcome.summary.get("remarks", ())):
        say(notes(), f"error: {diverged}")
    if json:
        say_json({**asdict(outcome), "download": str(outcome.download) if outcome.download else None})
    else:
        _show(outcome, job)
    if diverged or not outcome.finished:
        raise typer.Exit(1)


def _configured(arguments: JobArguments, given: Values, classes: list[str] | None) -> Job:
    """The job with these values, but for those that are None."""
    from grandrounds.data.site import LABELLED_NAME
    from grandrounds.deployment.presets import FIRST_JOB

    values = {key: value for key, value in given.items() if value is not None}
    if arguments.method == FIRST_JOB and ("problem", "dataset") not in {**values, **arguments.values()}:
        # Synthetic images: for the small network, and of as many patients of each class as sums need to leave a site.
        arguments, values = replace(arguments, job=FIRST_JOB), {**values, ("problem", "dataset"): LABELLED_NAME}
    return arguments.configured({"classes": classes} if classes else {}, values)


def _run_and_digest(path: Path) -> str:
    """A run as ``controller.start_from`` names it."""
    from grandrounds.federation.server.record import SUMMARY
    from grandrounds.files import file_digest, read_json_object
    from grandrounds.reporting.runs import SELECTED, record_folder

    folder = record_folder(path)
    summary, weights = read_json_object(folder / SUMMARY), folder / SELECTED
    name = summary.get("configuration", {}).get("run_name")
    if summary.get("status") != "finished" or not name or not weights.is_file():
        raise ConfigurationError(f"--start: {folder} has no finished run with {SELECTED}: finish it, or name another")
    return f"{name}@{file_digest(weights)}"


def _by_site(text: str | None) -> dict[str, float]:
    """The numbers of ``a=1,b=2``."""
    values = {}
    for part in comma_separated(text) or ():
        site, _, number = part.partition("=")
        try:
            values[site] = float(number)
        except ValueError:
            values[site] = 0.0
        if not site or not 0 < values[site] < float("inf"):
            raise typer.BadParameter(f"--gpu-memory must be SITE=GIB,... with numbers above 0, got {part!r}")
    return values


def _run(job: CheckedJob, kit: Path, out: Path, attempts: int, dry_run: bool) -> Outcome | None:
    from grandrounds.deployment.disclosure import announced_scores, disclosure
    from grandrounds.deployment.job_watch import admin_session, connected_sites
    from grandrounds.deployment.kit.read import read_kit
    from grandrounds.deployment.kit.signers import submitter_fault
    from grandrounds.deployment.presets import RECOMMENDED, presets_of
    from grandrounds.deployment.submission import require_gpu_sites, submit_and_watch

    person, console = read_kit(kit), notes()
    if fault := submitter_fault(person):
        if person.kind != "person":
            raise ConfigurationError(fault)
        say(console, f"warning: {fault}")
    connected: list[str] = []
    try:
        with admin_session(person) as session:
            connected = connected_sites(session)
    except GrandRoundsError:
        if not dry_run:
            raise
    require_gpu_sites(job, [] if dry_run else connected)
    for line in (*disclosure(job, connected), *announced_scores(job, out)):
        say(console, line)
    if not job.value("controller", "preset") and RECOMMENDED in presets_of(job):
        say(console, f"no preset is used; what is advised for images of hospitals is --preset {RECOMMENDED}")
    if dry_run:
        return None
    started = time.monotonic()
    return submit_and_watch(
        person, job, out, lambda line: say(console, f"[{time.monotonic() - started:6.0f} s] {line}"), attempts
    )


def _require_reference(job: Job) -> None:
    from grandrounds.deployment.reference import ridge_row

    if ridge_row(job, 2) is None:
        raise UsageError(
            f"--reference adds ridge beside another method that trains, and {job.name} is none; leave it out"
        )


def _add_reference(job: CheckedJob, outcome: Outcome, kit: Path, out: Path) -> None:
    from grandrounds.deployment.kit.read import read_kit
    from grandrounds.deployment.reference import submit_reference

    console = notes()
    entry = submit_reference(job, outcome, read_kit(kit), out, lambda line: say(console, f"ridge: {line}"))
    say(console, f"ridge: {entry.get('reason') or entry['told']}")


def _show(outcome: Outcome, job: Job) -> None:
    from grandrounds.console.scores import facts, score_table
    from grandrounds.federation.server.record import absences
    from grandrounds.reporting.run import tested_models
    from grandrounds.reporting.runs import read_models

    console = results()
    summary: dict[str, Any] = outcome.summary
    counted = show_statistics(summary, job)
    if (
        not counted
        and outcome.download
        and tested_models(summary)
        and (runs := read_models(outcome.download / "workspace"))
    ):
        console.print(score_table(runs))
    for line in facts(summary) if outcome.finished and not counted else ():
        say(console, line)
    for site, reason in outcome.refused.items():
        say(console, f"{site} has not accepted the job: {reason}")
    for site, words in absences(summary).items():
        say(console, f"{site} is {words}")
    if outcome.download and (outcome.download / "workspace" / "results").is_dir():
        say(console, f"results: {outcome.download / 'workspace' / 'results'}")
    for line in () if outcome.finished else _unfinished(outcome, job):
        say(console, line)


def show_statistics(summary: Mapping[str, Any], job: Job) -> bool:
    """Print what the job ``statistics`` has counted at each site; whether the run was of that job."""
    from grandrounds.deployment.disclosure import statistics_of, withheld_scores

    console = results()
    if sites := statistics_of(summary):
        console.print(_statistics_table(sites))
        classes, minimum = summary["configuration"]["problem"]["classes"], int(job.value("executor", "min_count"))
        for line in withheld_scores(sites, classes, minimum):
            say(console, line)
        say(console, "brightness: rounds[0].statistics in summary.json; numbers of too few patients are not released")
    return bool(sites)


def _unfinished(outcome: Outcome, job: Job) -> Iterator[str]:
    """Why a run has not finished, and how it goes on."""
    from grandrounds.deployment.disclosure import under_policy
    from grandrounds.deployment.kit.shipped import POLICIES
    from grandrounds.protocol.refusal import Reason

    summary = outcome.summary
    if outcome.not_taken:
        yield f"the job was refused, and the run of this name is as it was: {summary['reason']}"
        return
    if outcome.final:
        whose = "sites refuse the job, and will again" if outcome.refusals else "another attempt ends in the same way"
        yield f"{whose}: {summary.get('reason') or outcome.status}"
        for site, refusal in outcome.refusals.items():
            yield "; ".join(filter(None, [f"{site}: {refusal.cause}", refusal.advice]))
        allowed = [name for name in POLICIES if not under_policy(job, name).startswith("refused")]
        yield f"shipped policies under which the job runs: {', '.join(allowed) or 'none'}; each hospital decides on its own"
        return
    if outcome.refused and not summary:
        yield f"the run has not begun (FLARE's status: {outcome.status}): these sites refuse the job; change what they name"
        return
    reason = summary.get("reason") or "it has left no summary; see the log of the job in the download"
    yield f"the run has not finished (FLARE's status: {outcome.status}): {reason}"
    if Reason.DATASET in reason:
        named = job.value("problem", "dataset")
        yield (
            f"the job asks for data set {named!r}: if the sites give theirs another name, submit with --dataset and that "
            "name; else the sites' logs say what their gates lack"
        )
    yield from summary.get("remarks", ())
    if kept := summary.get("checkpoints"):
        yield f"checkpoints (--resume-from ROUND): {', '.join(map(_checkpoint, kept))}"
    yield "run the same command to resume it after its last complete round; --resume auto does so by itself"


def _checkpoint(kept: dict[str, Any]) -> str:
    """A kept checkpoint as text, such as ``round 3 (score 0.612, bad)``."""
    remarks = [f"score {kept['score']:.3f}"] if kept["score"] is not None else []
    remarks += ["bad"] if kept["bad"] else []
    return f"round {kept['round']}" + (f" ({', '.join(remarks)})" if remarks else "")


def _statistics_table(sites: dict[str, dict[str, float]]) -> Table:
    """Numbers of images by class and size, with a column for each site."""
    names = {name for numbers in sites.values() for name in numbers if not name.startswith("intensity.")}
    rows = (
        [name, *(f"{numbers[name]:.0f}" if name in numbers else "-" for numbers in sites.values())]
        for name in natural_sorted(names)
    )
    return table_of(("images by class and size", *sites), rows)
