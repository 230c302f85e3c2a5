"""Reports, figures and exports of finished runs; a report loads neither torch nor FLARE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from grandrounds.checks import as_path, require_mapping
from grandrounds.console.output import notes
from grandrounds.console.progress import Step, steps_on
from grandrounds.data.partition.files import sites_and_problem
from grandrounds.data.population import communities_of
from grandrounds.data.site import CONFIG_NAME
from grandrounds.errors import ConfigurationError
from grandrounds.evaluation.history import RunHistory, selection_metric
from grandrounds.options import require_type
from grandrounds.reporting.external.result import ExternalResult
from grandrounds.reporting.figures.runs import training_drawings
from grandrounds.reporting.model import Report, report_on
from grandrounds.reporting.page import write_report
from grandrounds.reporting.run import ReadRun
from grandrounds.reporting.runs import (
    answers_folder,
    named_runs,
    read_columns,
    read_history,
    read_names,
    read_run,
    record_folder,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from grandrounds.api.sites import Sites

Named = Sequence[tuple[str | None, Path]]
"""Runs with their names; None takes that of the folder."""


class Workspace(Protocol):
    """A run with its folder."""

    workspace: Path


Runs = Workspace | Path | str | Sequence[Workspace | Path | str] | Mapping[str, Workspace | Path | str]


def report(
    runs: Runs,
    out: Path | str,
    *,
    sites: Sites | Path | str | None = None,
    title: str | None = None,
    reference: str | None = None,
    model: str | None = None,
    communities: Path | str | None = None,
    external: Sequence[Path | str] = (),
    examples: bool = False,
    progress: bool = True,
) -> Path:
    """Write a report on one run, or a comparison of several.

    Args:
        runs: one run or its workspace, or several by name or in a list. Runs that differ in their seed alone are one method.
        out: folder of the report; it is made when missing.
        sites: where the runs trained, or the folder of this partition, if their images are here: intervals then take the
            patient or lesion as a case.
        title: of the page.
        reference: name of the method to compare with; local training by default, else the first.
        model: ``common`` or ``own``, whose scores are reported; by default the common one where there is one.
        communities: a partition, or a JSON file ``{SITE: NAME}``.
        external: results of :func:`grandrounds.evaluate` that were written, of places that never took part.
        examples: show images of the first run, with names: a training image of each class, and test images behind each
            number of the confusion matrix. It must be a simulation on the images of this machine. Needs ``sites``; the
            page must then stay where the images are.
        progress: show the steps on the standard error if they take long.

    Returns:
        The path of ``report.html``.

    Raises:
        ConfigurationError: if there is no run, or the runs cannot be compared.
        DataError: if a run is damaged.
    """
    folder = as_path(out, "out, the folder of the report,")
    place = getattr(sites, "folder", sites)
    named = _named(runs)
    with steps_on(notes(), progress) as step:
        content = report_content(
            named,
            None if place is None else as_path(place, "sites", "give Sites, or the folder of a partition"),
            title=title,
            reference=reference,
            model=model,
            communities=None if communities is None else as_path(communities, "communities"),
            external=[as_path(path, "external") for path in external],
            examples=examples,
            step=step,
        )
        return write_report(content, folder, step)


def report_content(
    named: Named,
    sites_dir: Path | None,
    *,
    title: str | None,
    reference: str | None,
    model: str | None,
    step: Step,
    communities: Path | None = None,
    external: Sequence[Path] = (),
    examples: bool = False,
) -> Report:
    """The content of a report as values; arguments as those of :func:`report`.

    Raises:
        ConfigurationError: if there is no run, or the runs cannot be compared.
        DataError: if a run is damaged.
    """
    step("reading the runs")
    places = [ExternalResult.read(path) for path in external]
    reported = _read(named, sites_dir, communities, model)
    step("computing scores and intervals")
    if not examples:
        return report_on(reported, title, reference, places)
    if sites_dir is None:
        raise ConfigurationError("--examples: name the folder of the partition whose images are shown, --sites-dir")
    from grandrounds.reporting.local import examples_of

    return report_on(reported, title, reference, places, examples_of(reported[0], sites_dir))


def export(
    run: Path,
    out: Path | str,
    *,
    sites_dir: Path | None = None,
    external: Sequence[Path] = (),
    licence: str | None = None,
    formats: Sequence[str] = (),
    site: str | None = None,
    with_sums: bool = False,
    prevalence: Mapping[str, float] | None = None,
) -> list[Path]:
    """Write the selected model of a run, its card, a MONAI bundle, and the network in further formats.

    Args:
        run: workspace of a finished run, or its results.
        out: folder of the files; it is made when missing.
        sites_dir: the partition that the run trained on, for intervals by patient or lesion.
        external: results of places that never took part, for the card.
        licence: of the data that the model was trained on.
        formats: ``torchscript``, ``onnx``; both take images in [0, 1] and give logits.
        site: with ``problem.norm=site``, the site of the partition whose images the model is for.
        with_sums: also the sums of a run of ridge regression, for ``sums`` of :func:`grandrounds.evaluate`.
        prevalence: of a run of ridge regression, shares of classes at which risks are wanted in place of those of the
            training images; the other classes have the rest, divided as these are. Temperature and decisions stay.

    Returns:
        The paths that were written.

    Raises:
        ConfigurationError: if the run has no common model, a format is unknown or its packages are missing, a site is needed
            and not named, or named without its partition.
    """
    from grandrounds.federation.server.record import SUMMARY
    from grandrounds.files import read_json_object
    from grandrounds.methods.ridge.leave import notes_of
    from grandrounds.protocol.tasks import task_of
    from grandrounds.reporting.export import export_model
    from grandrounds.reporting.external.prediction import PortableSums

    folder = as_path(out, "out, the folder of the files,")
    if site is not None and sites_dir is None:
        raise ConfigurationError(
            f"the statistics of {site} are of its images: name the folder of the partition, --sites-dir"
        )
    (reported,) = _read([(run.absolute().name, run)], sites_dir, None, None)
    content = report_on([reported], places=[ExternalResult.read(path) for path in external])
    statistics_of = (site, sites_dir) if site is not None and sites_dir is not None else None
    sums = PortableSums.of_run(run) if with_sums else None
    of_risks = None
    if prevalence:
        require_mapping(prevalence, "prevalence", '{"melanoma": 0.02}')
        summary = read_json_object(record_folder(run) / SUMMARY)
        task_of(summary["configuration"]["problem"]).require_exclusive("prevalence")
        if (counts := notes_of(summary).get("class_counts")) is None:
            raise ConfigurationError(
                f"{run}: risks at a named prevalence need the counts of classes, which a run of ridge has; export it without"
            )
        of_risks = counts, prevalence
    return list(export_model(content, folder, licence, formats, statistics_of, sums, of_risks))


def history_of(run: Path, communities: Path | None = None) -> RunHistory:
    """The events of a run, which may have only begun, and the communities of its sites.

    Raises:
        ConfigurationError: if there is no record.
        DataError: if it is damaged.
    """
    history = read_history(run)
    if communities is None:
        return history
    return history._replace(communities=communities_of(communities, history.sites))


def training_figures(history: RunHistory) -> dict[str, Figure]:
    """Figures of a run's training, by name; none before a site has answered."""
    drawings = training_drawings(history, selection_metric(history.events), history.sites)
    return {drawing.name: drawing.figure for drawing in drawings}


def folder_of(run: Any) -> Path:
    """The workspace of a run, or of the path of one."""
    return as_path(getattr(run, "workspace", run), "a run", "give a Run or its workspace")


def _named(runs: Runs) -> Named:
    if isinstance(runs, Mapping):
        return [(name, folder_of(workspace)) for name, workspace in runs.items()]
    many = runs if isinstance(runs, Sequence) and not isinstance(runs, str) else [runs]
    return [(None, folder_of(workspace)) for workspace in many]


def _read(named: Named, sites_dir: Path | None, communities: Path | None, model: str | None) -> list[ReadRun]:
    if sites_dir is not None and not any(sites_dir.glob(f"*/{CONFIG_NAME}")):
        sites_and_problem(sites_dir)  # refuses what has no sites
    require_type(model, Literal["common", "own"] | None, "model")
    runs = named_runs(named)
    reported = [read_run(path, name, model) for name, path in runs.items()]
    if sites_dir is not None:
        reported = [_with_columns(run, path, sites_dir) for run, path in zip(reported, runs.values(), strict=True)]
    if communities is None:
        return reported
    return [
        replace(run, origin=replace(run.origin, communities=communities_of(communities, run.log.sites)))
        for run in reported
    ]


def _with_columns(run: ReadRun, path: Path, sites_dir: Path) -> ReadRun:
    """The run with the names of its test images and their further columns in the sites' manifests, where they are here."""
    if not run.tests.predictions or path.is_file():
        return run
    dataset = str(run.log.problem["dataset"])
    names = read_names(answers_folder(path), list(run.tests.predictions), run.tests.model)
    columns = read_columns(names, dataset, sites_dir)
    return replace(run, tests=replace(run.tests, columns=columns, names=names))
