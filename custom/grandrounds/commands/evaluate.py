"""``grandrounds evaluate``: external evaluation of a finished run's model, as tables or JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from grandrounds.commands.options import Json, comma_separated
from grandrounds.commands.output import notes, results, say, say_json
from grandrounds.errors import ConfigurationError

if TYPE_CHECKING:
    from grandrounds.data.site import DatasetLocation
    from grandrounds.evaluation.external import ImagePredictions
    from grandrounds.reporting.runs import TrainedModel


SITE_COLUMNS: Mapping[str, str] = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced\nacc.",
    "precision_weighted": "weighted\nprecision",
    "recall_weighted": "weighted\nrecall",
    "f1_weighted": "weighted\nF1",
    "ece": "ECE",
    "mce": "MCE",
    "risk": "risk",
    "aurc": "AURC",
    "coverage_at_risk_0.1": "coverage at\nrisk 0.1",
}
CLASS_COLUMNS: Mapping[str, str] = {
    "precision": "precision",
    "recall": "recall",
    "f1": "F1",
    "auroc": "AUROC",
    "average_precision": "average\nprecision",
    "auroc_hard_label": "AUROC,\nhard labels",
    "auprc_hard_label": "AUPRC,\nhard labels",
}
READINGS: Mapping[str, str] = {"argmax": "group of the most probable class", "summed": "most probable group"}


def site_table(report: Mapping[str, Any]) -> Table:
    """Scores of each site, their mean, and all images together; from :func:`grandrounds.evaluation.external.report`."""
    unit = "groups of classes" if report["labels"] == "groups" else "classes"
    table = _table("site", f"test images, {unit}", ("images", *SITE_COLUMNS.values()))
    for site, scores in report["sites"].items():
        _add(table, site, scores, SITE_COLUMNS)
    if len(report["sites"]) > 1:
        table.add_section()
        _add(table, "mean", {**report["mean"], "n": ""}, SITE_COLUMNS)
        _add(table, "pooled", report["pooled"], SITE_COLUMNS)
    return table


def class_table(classes: Mapping[str, Any]) -> Table:
    """Scores of each class, over all images; with several sites, also the mean over those that have the class."""
    several = any(entry["sites"] > 1 for entry in classes.values())
    table = _table("class", "classes, each against all others", ("images", *CLASS_COLUMNS.values()))
    for name, entry in classes.items():
        _add(table, f"{name}, pooled" if several else name, entry["pooled"], CLASS_COLUMNS)
    if several:
        table.add_section()
        for name, entry in classes.items():
            _add(table, f"{name}, mean of {entry['sites']}", {**entry["mean"], "n": ""}, CLASS_COLUMNS)
    return table


def group_table(groups: Mapping[str, Any]) -> Table:
    """Scores of each group over all images, in both readings."""
    columns = {name: CLASS_COLUMNS[name] for name in ("precision", "recall", "f1")}
    table = _table("reading", "groups of classes, all sites together", ("group", "images", *columns.values()))
    for reading, label in READINGS.items():
        for group, scores in groups[reading].items():
            table.add_row(label, Text(group), str(scores["n"]), *(_number(scores[name]) for name in columns))
        table.add_section()
    return table


def _table(first: str, title: str, columns: tuple[str, ...]) -> Table:
    table = Table(first, title=title, title_justify="left")
    for label in columns:
        table.add_column(label, justify="left" if label == "group" else "right")
    return table


def _add(table: Table, name: str, scores: Mapping[str, Any], columns: Mapping[str, str]) -> None:
    table.add_row(Text(name), str(scores["n"]), *(_number(scores[column]) for column in columns))


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}"


HELP = """External validation: test a finished run's model on the test images of any site.

RUN is a run's workspace (its selected model is taken) or a model file beside the run's summary.json. If the labels are
groups of classes, such as benign and malignant, --groups lists which class belongs to which.

--curves is for a hospital whose predictions must stay there: it writes counts of at least ten patients each to
DIR/SITE/curves_common.json. A report draws ROC curves and reliability from these files in the run's results.

[bold]Examples[/bold]

\b
  grandrounds evaluate runs/fedperl --sites-dir runs/ham/sites --site site-4
  grandrounds evaluate runs/fedperl --manifest isic2020.csv --root IMAGES --groups "malignant=mel,bcc;benign=nv,df"
  grandrounds evaluate runs/fedperl/results/last.pt --sites-dir DIR --json --predictions predictions.csv
"""


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's workspace, or a model file of it.")],
    sites_dir: Annotated[
        Path | None, typer.Option(help="Folder of a partition: the test images of its sites are predicted.")
    ] = None,
    site: Annotated[
        list[str] | None, typer.Option(help="With --sites-dir: only this site; repeatable. Default: all.")
    ] = None,
    manifest: Annotated[Path | None, typer.Option(help="A manifest, in place of a partition; needs --root.")] = None,
    root: Annotated[Path | None, typer.Option(help="Folder or archive of the manifest's images.")] = None,
    groups: Annotated[
        str | None, typer.Option(help="Groups of classes, a=x,y;b=z; the first is the one that must not be missed.")
    ] = None,
    predictions: Annotated[Path | None, typer.Option(help="Write every prediction to this CSV file.")] = None,
    curves: Annotated[
        Path | None, typer.Option(help="Folder for the curve counts of each site, which may leave it.")
    ] = None,
    json: Json = False,
) -> None:
    """Predict, and show the scores."""
    from grandrounds.evaluation.external import labels_are_groups, report, write_predictions
    from grandrounds.evaluation.per_class import grouping_of
    from grandrounds.reporting.runs import trained_model

    grouped = groups_of(groups) if groups is not None else None
    locations = _located(sites_dir, site, manifest, root)
    trained = trained_model(run)
    classes = trained.problem.classes
    grouping = grouping_of(grouped, classes) if grouped is not None else None
    by_group = labels_are_groups(locations, classes, list(grouped or ()))
    vocabulary = tuple(grouped or ()) if by_group else classes
    found = _predict(trained, locations, vocabulary)
    content = report(found, classes, grouping, by_group)
    if predictions is not None:
        write_predictions(predictions, found, classes, vocabulary, grouping)
    if curves is not None:
        _write_curves(curves, found, classes, by_group)
    if json:
        say_json(_without_nan({"model": str(trained.weights), **content}))
    else:
        _show(content, trained.weights)


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


def _located(
    sites_dir: Path | None, site: Sequence[str] | None, manifest: Path | None, root: Path | None
) -> dict[str, DatasetLocation]:
    """Where the images of each site are."""
    if sites_dir is not None and manifest is None and root is None:
        return _of_partition(sites_dir, site)
    if sites_dir is not None or manifest is None or root is None or site:
        raise typer.BadParameter("give either --sites-dir (and --site), or --manifest with --root")
    from grandrounds.data.site import DatasetLocation

    if not root.exists():
        raise ConfigurationError(f"--root: there is no file or folder {root}")
    return {manifest.stem: DatasetLocation(manifest, root)}


def _of_partition(sites_dir: Path, chosen: Sequence[str] | None) -> dict[str, DatasetLocation]:
    from grandrounds.data.site import locate_dataset
    from grandrounds.deployment.simulate import sites_of

    sites, problem = sites_of(sites_dir)
    for name in chosen or ():
        if name not in sites:
            raise ConfigurationError(f"--site: {sites_dir} has no site {name!r}; it has {', '.join(sites)}")
    return {name: locate_dataset(name, problem["dataset"], [sites_dir]) for name in sites if name in (chosen or sites)}


def _predict(
    trained: TrainedModel, locations: Mapping[str, DatasetLocation], vocabulary: Sequence[str]
) -> dict[str, ImagePredictions]:
    import torch

    from grandrounds.evaluation.external import load_test_images, load_trained, predict_images
    from grandrounds.reporting.predictions import decoded_images

    problem = trained.problem
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = load_trained(problem.model_spec(pretrained=False), trained.weights).to(device)
    found = {}
    with decoded_images() as cache:
        for name, location in locations.items():
            images = load_test_images(name, location, vocabulary, problem.image_size, problem.channels, cache)
            if images.unreadable:
                say(notes(), f"{name}: {images.unreadable} test images cannot be read and are left out")
            found[name] = predict_images(model, images, device)
    return found


def _write_curves(folder: Path, found: Mapping[str, ImagePredictions], classes: Sequence[str], by_group: bool) -> None:
    """``SITE/curves_common.json`` for each site, as a report finds them in a run's results."""
    from grandrounds.evaluation.bootstrap import cases_of
    from grandrounds.evaluation.curves import site_curves, write_curves

    if by_group:
        raise typer.BadParameter("--curves: the labels are groups of classes, and curves are of classes")
    for name, predicted in found.items():
        cases = cases_of(predicted.labels, predicted.probabilities, predicted.groups or None)
        write_curves(folder / name / "curves_common.json", site_curves(cases, classes), classes)


def _show(content: Mapping[str, Any], weights: Path) -> None:
    console = results()
    console.print(site_table(content))
    if "classes" in content:
        console.print(class_table(content["classes"]))
    if "groups" in content:
        console.print(group_table(content["groups"]))
    say(console, f"model: {weights}")


def _without_nan(content: Any) -> Any:
    """The same with None for NaN, which JSON does not have."""
    if isinstance(content, Mapping):
        return {key: _without_nan(value) for key, value in content.items()}
    return None if isinstance(content, float) and math.isnan(content) else content
