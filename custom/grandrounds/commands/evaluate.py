"""``grandrounds evaluate``: external validation of a finished run's model, as tables, JSON, and a section of a report."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from grandrounds.commands.options import Json, Members, OwnModels, comma_separated, takes
from grandrounds.console.output import notes, results, say, say_json, table_of

if TYPE_CHECKING:
    from grandrounds.api.evaluation import Evaluation
    from grandrounds.reporting.external.result import ExternalResult
    from grandrounds.reporting.tables import PageTable

READINGS: Mapping[str, str] = {"argmax": "the group of the predicted class", "summed": "the highest sum of a group"}


@dataclass(frozen=True)
class EvaluationArguments:
    """The options that say where the images are and what is asked of the model."""

    sites_dir: Annotated[
        Path | None, typer.Option(help="Folder of a partition: the test images of its sites are predicted.")
    ] = None
    site: Annotated[
        list[str] | None, typer.Option(help="With --sites-dir: only this site; repeatable. Default: all.")
    ] = None
    manifest: Annotated[Path | None, typer.Option(help="A manifest, in place of a partition; needs --root.")] = None
    root: Annotated[Path | None, typer.Option(help="Folder or archive of the manifest's images.")] = None
    name: Annotated[str | None, typer.Option(help="Name of the place; default: of the folder or the manifest.")] = None
    groups: Annotated[
        str | None, typer.Option(help="Groups of classes, a=x,y;b=z; the first is the one that must not be missed.")
    ] = None
    positive: Annotated[
        str | None, typer.Option(help="Classes or groups that count as positive, a,b; default: the first group.")
    ] = None
    sensitivity: Annotated[
        float,
        typer.Option(min=0.01, max=1.0, help="Sensitivity of the operating point on the run's validation images."),
    ] = 0.9
    threshold: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, help="The operating point, stated instead of fixed on images.")
    ] = None
    prevalence: Annotated[
        str | None, typer.Option(help="Prevalences for predictive values, 0.02,0.1; the place's own is always shown.")
    ] = None
    recalibrate: Annotated[
        str,
        typer.Option(
            help="Share of the cases (0 to 0.9) on which intercept and temperature of the positive group are fitted; or "
            "adapt the model and score it on the rest: labels:N, head:N, shares, shares:a=0.3,b=0.7."
        ),
    ] = "0"
    sums: Annotated[
        Path | None, typer.Option(help="sums.safetensors of export --with-sums: head:N adds the labels to these sums.")
    ] = None
    ensemble: OwnModels = False
    members: Members = None
    minimum: Annotated[int, typer.Option(min=1, help="Smallest count in --out; the site's min_support if higher.")] = 10
    allow_overlap: Annotated[
        bool, typer.Option("--allow-overlap", help="Go on where the place took part in the run, with a warning.")
    ] = False

    def evaluated(self, run: Path, of_classes: Sequence[str]) -> Evaluation:
        """Check the options and predict; ``of_classes`` are the outputs that need labels of classes."""
        from grandrounds.api.evaluation import evaluate as evaluate_run
        from grandrounds.api.evaluation import located

        groups = groups_of(self.groups) if self.groups is not None else None
        prevalences = prevalences_of(self.prevalence)
        return evaluate_run(
            run,
            located(self.sites_dir, self.site, self.manifest, self.root),
            name=self.name or self._place_name(),
            groups=groups,
            positive=comma_separated(self.positive),
            sensitivity=self.sensitivity,
            threshold=self.threshold,
            prevalences=prevalences,
            recalibrate=self.recalibrate,
            sums=self.sums,
            ensemble=self.members or self.ensemble,
            minimum=self.minimum,
            allow_overlap=self.allow_overlap,
            of_classes=of_classes,
            command=_command(),
        )

    def _place_name(self) -> str:
        if self.manifest is not None:
            return self.manifest.stem
        if self.site and len(self.site) == 1:
            return self.site[0]
        return self.sites_dir.absolute().name if self.sites_dir else ""


@takes(EvaluationArguments)
def evaluate(
    arguments: EvaluationArguments,
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's workspace, or a model file of it.")],
    predictions: Annotated[Path | None, typer.Option(help="Write every prediction to this CSV file.")] = None,
    failures: Annotated[
        Path | None, typer.Option(help="Draw the most confident errors, PNG; the file shows patients' images.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the result to this JSON file, for a report.")] = None,
    json: Json = False,
) -> None:
    """External validation: test a finished run's model at a place that never took part.

    RUN is a run's workspace (its selected model is taken) or a model file beside the run's summary.json. The images are
    those of a partition's sites in split test, or of a manifest. A place that took part, or images of the run, are
    refused.

    --positive names the classes that must not be missed: their AUROC, sensitivity and specificity at an operating point,
    predictive values, calibration, net benefit and subgroups are shown with 95 % intervals. The operating point is fixed
    on the validation images of the run's sites, never on the images that are tested. If the labels are groups of classes,
    such as benign and malignant, --groups lists which class belongs to which.

    A run whose sites have models of their own has no selected one: --ensemble scores the mean of these models'
    probabilities, which often beats each of them, where partners may run each other's models. RUN's folder has them after
    a simulation or where sites release them; --member names files that sites have handed over, own.pt with own.json
    beside it.

    --out writes what was found, without a count below --minimum; grandrounds report --external FILE makes a section of
    it. --predictions and --failures name or show single images: these files must stay at the place. pandas is
    needed, which a hospital that only trains has not: install the extra study.

    Examples:
      grandrounds evaluate runs/ham --sites-dir runs/clinic --name "Clinic A" --positive mel,bcc,akiec --out clinic.json
      grandrounds evaluate runs/ham --manifest isic2020.csv --root IMAGES --groups "malignant=mel,bcc;benign=nv,df"
      grandrounds evaluate runs/ham --sites-dir DIR --positive mel --prevalence 0.02,0.1 --recalibrate 0.3
      grandrounds evaluate runs/ham --sites-dir DIR --recalibrate labels:20
      grandrounds evaluate runs/ridge --sites-dir DIR --recalibrate head:30 --sums runs/ridge/model/sums.safetensors
      grandrounds evaluate runs/local --sites-dir DIR --member a/own.pt --member b/own.pt
    """
    from grandrounds.plain import to_plain

    evaluation = arguments.evaluated(run, ["--failures"] if failures is not None else [])
    if failures is not None:
        evaluation.draw_failures(failures)
    if predictions is not None:
        evaluation.write_predictions(predictions)
    if out is not None:
        evaluation.write(out)
    content, model = evaluation.tables(), ", ".join(map(str, evaluation.trained.files.values()))
    if json:
        say_json(to_plain({"model": model, **content, "external": evaluation.result.to_json()}))
    else:
        _show(evaluation.result, content, model)


def prevalences_of(text: str | None) -> list[float]:
    """The prevalences in ``0.02,0.1``, each above 0 and below 1.

    Raises:
        typer.BadParameter: if one is no such number.

    Example:
        >>> prevalences_of("0.02, 0.1")
        [0.02, 0.1]
    """
    values = []
    for part in comma_separated(text) or []:
        try:
            value = float(part)
        except ValueError:
            value = math.nan
        if not 0 < value < 1:
            raise typer.BadParameter(f"--prevalence: expected numbers above 0 and below 1, got {part!r}")
        values.append(value)
    return values


def groups_of(text: str) -> dict[str, list[str]]:
    """The groups in ``a=x,y;b=z``: names of classes by group.

    Raises:
        typer.BadParameter: if the text is not of this form or names a group twice.

    Example:
        >>> groups_of("malignant=mel,bcc; benign=nv")
        {'malignant': ['mel', 'bcc'], 'benign': ['nv']}
    """
    groups: dict[str, list[str]] = {}
    for part in filter(None, (part.strip() for part in text.split(";"))):
        name, equals, members = part.partition("=")
        name, classes = name.strip(), comma_separated(members)
        if not equals or not name or not classes:
            raise typer.BadParameter(f"--groups: expected GROUP=CLASS,CLASS;GROUP=CLASS, got {part!r}")
        if name in groups:
            raise typer.BadParameter(f"--groups: {name!r} is named twice")
        groups[name] = classes
    return groups


def _command() -> str:
    """What was typed; of an absolute path the last part."""
    typed = [Path(part).name if part.startswith("/") else part for part in sys.argv[1:]]
    return shlex.join(["grandrounds", *typed])


def _show(result: ExternalResult, content: Mapping[str, Any], model: str) -> None:
    from grandrounds.reporting.external.section import tables_of

    console = results()
    for table in tables_of(result):
        say(console, f"\n{table.caption}")
        console.print(_as_rich(table))
    if "groups" in content:
        console.print(group_table(content["groups"]))
    if "adapted" in content:
        console.print(_adapted_table(content["adapted"]))
    say(console, "\ncaveats" if result.caveats else "")
    for caveat in result.caveats:
        say(console, f"- {caveat}")
    say(console, f"model: {model}")


def _as_rich(table: PageTable) -> Table:
    """A table of the page on the console: an interval is behind its value."""
    rows = ([Text(cell if isinstance(cell, str) else cell.line) for cell in row] for row in table.rows)
    return table_of(table.header, rows, table.header[table.text_columns :])


def group_table(groups: Mapping[str, Any]) -> Table:
    """Precision, recall and F1 of each group over all images, in both readings of a prediction."""
    table = Table("predicted group", "group", title="groups of classes, all images together", title_justify="left")
    for label in ("images", "precision", "recall", "F1"):
        table.add_column(label, justify="right")
    for reading, label in READINGS.items():
        for group, scores in groups[reading].items():
            numbers = (_number(scores[name]) for name in ("precision", "sensitivity", "f1"))
            table.add_row(label, Text(group), str(scores["n"]), *numbers)
        table.add_section()
    return table


def _adapted_table(adapted: Mapping[str, Any]) -> Table:
    """What was fitted for each class, and its scores before and after."""
    used = f"from the labels of {adapted['images']} images" if adapted["images"] else "without labels"
    rows: list[list[str | Text]] = []
    numbers = ("sensitivity", "adapted", "AUROC", "adapted")
    for name, before in adapted["before"]["classes"].items():
        both = (before, adapted["after"]["classes"][name])
        scores = [by_score[key]["value"] for key in ("sensitivity", "auroc") for by_score in both]
        fitted = [f"{values[name]:.2f}" for values in adapted["by_class"].values()]
        rows.append([Text(name), *fitted, *("-" if score is None else f"{score:.3f}" for score in scores)])
    title = f"the adapted model by class, fitted {used}"
    return table_of(("class", *adapted["by_class"], *numbers), rows, numbers, title)


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}"


LABELLED_NEXT = 30


def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's workspace.")],
    images: Annotated[list[Path], typer.Argument(metavar="IMAGES", help="Images, or a folder or archive of images.")],
    sites_dir: Annotated[Path | None, typer.Option(help="Folder of the partition that the run trained on.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the table to this CSV file; else it is printed.")] = None,
    label_next: Annotated[
        Path | None,
        typer.Option(help=f"Write the {LABELLED_NEXT} images that are most worth a label to this CSV file."),
    ] = None,
    ensemble: OwnModels = False,
    members: Members = None,
    json: Json = False,
) -> None:
    """Predict images with a finished run's selected model.

    RUN is a run's workspace. IMAGES are files, or one folder or archive, prepared like those of the run: name with
    --sites-dir the partition that it trained on, if its images were prepared in a way of their own (windows, bit depth).

    Predictions name images of patients: --out and --label-next stay at the place. --label-next lists the images that are
    most worth a label, for grandrounds evaluate --recalibrate: predicted classes in turn, of each the least certain image
    first. For scores on labelled images there is grandrounds evaluate, where --ensemble and --member are explained, too.

    Examples:
      grandrounds predict runs/ham IMAGES --out predicted.csv
      grandrounds predict runs/ham IMAGES --label-next next.csv
      grandrounds predict runs/ham a.jpg b.dcm --json
      grandrounds predict runs/local IMAGES --ensemble
    """
    from grandrounds.api.running import Run
    from grandrounds.api.sites import Sites
    from grandrounds.csv_files import csv_bytes, write_csv
    from grandrounds.evaluation.label_quotas import label_order
    from grandrounds.protocol.tasks import task_of

    finished = Run(run, Sites.read(sites_dir) if sites_dir else None)
    if label_next is not None:
        task_of(finished.summary["configuration"]["problem"]).require_exclusive("--label-next")
    names, predicted, probabilities = finished.predicted(images, ensemble=members or ensemble)
    header = ["image", "predicted", *(f"probability_{name}" for name in finished.classes)]
    rows = [[*cells, *values] for *cells, values in zip(names, predicted, probabilities.tolist(), strict=True)]
    lines = [[image, label, *(f"{value:.6f}" for value in values)] for image, label, *values in rows]
    if out is not None:
        write_csv(out, header, lines)
        say(notes(), f"{len(lines)} images: {out}")
    if label_next is not None:
        order = label_order(probabilities)[:LABELLED_NEXT]
        write_csv(label_next, header, [lines[row] for row in order])
        say(notes(), f"{len(order)} images to label: {label_next}")
    if json:
        say_json([dict(zip(header, row, strict=True)) for row in rows])
    elif out is None and label_next is None:
        say(results(), csv_bytes(header, lines).decode().rstrip("\n"))
