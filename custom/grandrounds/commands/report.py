"""``grandrounds runs``, ``report``, ``figures``, ``errors``, ``export`` and ``run``: what is made of runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from grandrounds.commands.options import Json, comma_separated
from grandrounds.console.output import notes, results, say, say_json, table_of
from grandrounds.console.progress import steps_on
from grandrounds.errors import ConfigurationError
from grandrounds.files import replacing
from grandrounds.folders import written_together

Communities = Annotated[
    Path | None,
    typer.Option(help="Communities: a partition (each site's commonest source), or a JSON file {SITE: NAME}."),
]


Reference = Annotated[
    str | None, typer.Option(help="The method to compare with; default: local training, else the first.")
]
Whose = Annotated[
    Literal["common", "own"] | None,
    typer.Option(help="Whose scores: one common model, or each site's own choice of a round's model."),
]


def _split(runs: list[str]) -> list[tuple[str | None, Path]]:
    """The names, where there are some, and the places of ``[NAME=]RUN``."""
    from grandrounds.reporting.runs import split_argument

    return [(None, Path(text)) if Path(text).exists() else split_argument(text) for text in runs]


def report(
    runs: Annotated[list[str], typer.Argument(metavar="[NAME=]RUN...", help="Runs to report on.")],
    out: Annotated[Path, typer.Option(help="Folder for the report; it is made when missing.")],
    sites_dir: Annotated[
        Path | None, typer.Option(help="Folder of the partition that the runs had, if their images are here.")
    ] = None,
    groups: Communities = None,
    reference: Reference = None,
    model: Whose = None,
    external: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="A place's result of grandrounds evaluate --out; repeatable."),
    ] = None,
    examples: Annotated[
        bool,
        typer.Option(
            "--examples",
            help="Show an image of each class, and the images behind each number of the confusion matrix with their names; "
            "the page must then stay where the images are.",
        ),
    ] = False,
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
    json: Json = False,
) -> None:
    """Report on one run, or compare several.

    Writes report.html, one file that needs no network, and beside it figures (SVG), tables (CSV) and report.json. Nothing
    in them names an image or a patient, or shows one unless --examples is given. A RUN is a simulation's workspace or the
    results of a downloaded job; NAME=RUN gives it a name. Runs that differ in their seed alone are one method.

    Scores are of the one model that the federation selected, where it has one; --model own takes what each site would
    choose among the rounds' models. Thresholds are chosen on the sites' validation images. With --sites-dir intervals
    take the patient or lesion as a case. --external adds a place that never took part. Of a run that was not simulated on
    this machine no count from 1 to 9 is shown, and no image with --examples.

    Examples:
      grandrounds report runs/fedperl --out runs/fedperl/report
      grandrounds report FedPerl=runs/fedperl Local=runs/local --out runs/comparison --reference Local
      grandrounds report runs/ham --out runs/ham/report --sites-dir runs/ham/sites --groups runs/ham/sites
    """
    from grandrounds.api.reports import report_content
    from grandrounds.reporting.page import write_report

    with steps_on(notes()) as step:
        content = report_content(
            _split(runs),
            sites_dir,
            title=title,
            reference=reference,
            model=model,
            communities=groups,
            external=external or (),
            examples=examples,
            step=step,
        )
        page = write_report(content, out, step)
    if json:
        say_json(content.to_json())
    else:
        say(results(), str(page))


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The workspace of a finished run, or its results.")],
    out: Annotated[Path, typer.Option(help="Folder for the model; it is made when missing.")],
    sites_dir: Annotated[Path | None, typer.Option(help="Folder of the partition that the run had.")] = None,
    external: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="A place's result of grandrounds evaluate --out, for the card; repeatable."),
    ] = None,
    licence: Annotated[str | None, typer.Option(help="Licence of the data that the model was trained on.")] = None,
    formats: Annotated[
        str | None, typer.Option(metavar="A,B", help="Further formats: torchscript, onnx (extra onnx).")
    ] = None,
    site: Annotated[
        str | None,
        typer.Option(help="With problem.norm=site: the site of the partition whose images the model is for."),
    ] = None,
    with_sums: Annotated[
        bool,
        typer.Option("--with-sums", help="Also the sums of a run of ridge, which tell much of its training images."),
    ] = False,
    prevalence: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CLASS=SHARE",
            help="Of a run of ridge: risks at this share of a class, the others having the rest as in training; repeatable.",
        ),
    ] = None,
) -> None:
    """Export the selected model of a run.

    Writes model.safetensors, model_card.json and a MONAI bundle. The card describes the training data and the test
    results; with --sites-dir its intervals take the patient or lesion as a case. No image, and no name of one, is in it.

    Examples:
      grandrounds export runs/fedperl --out runs/fedperl/model
      grandrounds export runs/ham --out runs/ham/model --sites-dir runs/ham/sites --licence CC-BY-NC-4.0
      grandrounds export runs/ridge --out runs/ridge/model --with-sums
      grandrounds export runs/ridge --out runs/ridge/clinic --prevalence melanoma=0.02
    """
    from grandrounds.api.reports import export as write_model

    options: dict[str, Any] = {
        "licence": licence,
        "formats": comma_separated(formats) or (),
        "site": site,
        "with_sums": with_sums,
        "prevalence": _shares_of_classes(prevalence or ()),
    }
    for path in write_model(run, out, sites_dir=sites_dir, external=external or (), **options):
        say(results(), str(path))


def _shares_of_classes(assignments: Sequence[str]) -> dict[str, float]:
    """The share of each class, from ``CLASS=SHARE``.

    Raises:
        typer.BadParameter: if a share is no number, or a class is named twice.
    """
    shares: dict[str, float] = {}
    for assignment in assignments:
        name, _, share = assignment.rpartition("=")
        try:
            number = float(share)
        except ValueError:
            number = math.nan
        if math.isnan(number) or name in shares:
            wanted = "each class once, as CLASS=SHARE such as melanoma=0.02"
            raise typer.BadParameter(f"--prevalence: expected {wanted}, got {assignment!r}")
        shares[name] = number
    return shares


def figures(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A simulation's workspace, or the folder of events.jsonl.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the figures; it is made when missing.")],
    groups: Communities = None,
    sites_dir: Annotated[
        Path | None, typer.Option(help="Folder of the run's partition, to show single images; keep what is written.")
    ] = None,
) -> None:
    """Draw figures from the record of a run.

    Learning curves, communication, and the figures of the run's method: peer frequency, similarity of the models,
    relation matrices, pseudo-labels, or entropy of the soft labels. With --groups the sites of a community are side by
    side, and similarity within communities is compared with that between them.

    With --sites-dir, where the images are on this machine, single cases are also shown: for each site a sheet of right,
    wrong and uncertain predictions, with and without Grad-CAM. These figures show patients' images and must stay where
    the images are; a report has none of them.

    Examples:
      grandrounds figures runs/fedperl --out runs/fedperl/figures
      grandrounds figures runs/ham --out runs/ham/figures --groups runs/ham/sites
      grandrounds figures runs/ham --out runs/ham/private --sites-dir runs/ham/sites
    """
    from grandrounds.api.reports import history_of, training_figures

    with steps_on(notes()) as step:
        step("reading the run")
        drawn = training_figures(history_of(run, groups))
        if sites_dir is not None:
            from grandrounds.reporting.figures.images import image_figures

            drawn |= image_figures(run, sites_dir, step)
        if not drawn:
            raise ConfigurationError(
                f"{run}: there is nothing to draw yet: no site has sent a score or trained with others"
            )
        with written_together(out) as new:
            for name, figure in drawn.items():
                step(f"writing {name}.png")
                with replacing(new / f"{name}.png") as stream:
                    figure.savefig(stream, format="png")
    for name in drawn:
        say(results(), str(out / f"{name}.png"))


MOST_LISTED = 24
"""Wrong images in the terminal."""


def errors(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A simulation's workspace.")],
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write all of them as CSV; keep the file.")] = None,
    json: Json = False,
) -> None:
    """List the test images that a run's model gets wrong, by name, the surest errors first.

    Beside each name are its site, its class, the class that it is called, and the probability of that. In a federation the
    predictions stay at the sites. The pictures are drawn by grandrounds figures with --sites-dir.

    Examples:
      grandrounds errors runs/ham
      grandrounds errors runs/ham --out runs/ham/errors.csv
    """
    from grandrounds.csv_files import write_csv
    from grandrounds.reporting.runs import WrongImage, wrong_images

    wrong = wrong_images(run)
    if out is not None:
        write_csv(out, WrongImage._fields, wrong)
    if json:
        say_json([image._asdict() for image in wrong])
        return
    shown = [(*image[:4], f"{image.probability:.2f}") for image in wrong[:MOST_LISTED]]
    results().print(table_of(WrongImage._fields, shown, right=["probability"]))
    say(results(), f"{len(wrong)} test images are wrong, {len(shown)} of them shown{f'; all: {out}' if out else ''}")


def runs(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="It is searched three levels deep.")] = Path(
        "runs"
    ),
    json: Json = False,
) -> None:
    """List the runs in a folder: method, data, sites, state, and scores on all test images together.

    Examples:
      grandrounds runs
      grandrounds runs runs/ham --json
    """
    from grandrounds.errors import GrandRoundsError
    from grandrounds.reporting.run import table_rows
    from grandrounds.reporting.runs import read_run, run_folders

    listed: list[dict[str, Any]] = []
    for path in run_folders(folder):
        try:
            run = read_run(path, path.name)
            rows = {row.name: row.scores for row in table_rows(run)}
        except GrandRoundsError as error:
            listed.append({"run": str(path), "state": f"unreadable: {error}"})
            continue
        scores = {name: score.value for name, score in rows.get("pooled", rows.get("mean", {})).items()}
        done = f"{run.log.status}, {run.log.rounds_done} rounds"
        about = {
            "method": run.log.method,
            "data": run.log.problem["dataset"],
            "sites": len(run.log.sites),
            "state": done,
        }
        listed.append({"run": str(path), **about, "scores": scores})
    if json:
        say_json(listed)
        return
    for entry in listed:
        entry["scores"] = ", ".join(f"{name} {value:.3f}" for name, value in entry.get("scores", {}).items())
    headings = ("run", "method", "data", "sites", "state", "scores")
    results().print(table_of(headings, ([str(entry.get(name, "")) for name in headings] for entry in listed)))


def run() -> None:
    """What can be made of a finished run."""


def leave(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A simulation's workspace, or the run at the server.")],
    site: Annotated[list[str], typer.Option(help="The site that leaves; repeatable.")],
    out: Annotated[Path, typer.Option(help="Folder of the new run; it must be empty or not exist.")],
    json: Json = False,
) -> None:
    """Let a site leave a finished run of ridge: write a new run with the head of the other sites.

    No site is asked: the server has kept the sums of up to 50 sites. With controller.class_balance=0 the head is that of
    training without the site. Else it is one at the old class weights, to which the site's images have counted: for
    training without it, run the job again with the other sites. The temperature stays that of the run.

    Anyone who has both runs sees their difference, which is the sums of the site. Delete the old one.

    Example:
      grandrounds run leave runs/ridge --site site-2 --out runs/ridge-without-2
    """
    from grandrounds.methods.ridge.leave import leave as without

    left = without(run, site, out)
    if json:
        say_json({**left.to_json(), "stayed": list(left.stayed), "out": str(out)})
        return
    say(results(), f"the head of {', '.join(left.stayed)}, without {', '.join(left.sites)}: {out}")
    if not left.exact:
        say(results(), "it is at the old class weights; for training without them run the job with the other sites")
    say(results(), "anyone who has both runs sees the sums of the sites that have left: delete the old one")
