"""External validation: a finished run's model at a place that never took part."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from grandrounds.api.reports import Workspace, folder_of
from grandrounds.api.sites import Sites
from grandrounds.checks import as_path, require_mapping
from grandrounds.console.output import notes, say
from grandrounds.console.progress import steps_on
from grandrounds.data.images.readers import ImageReader, open_images
from grandrounds.data.manifest import read_manifest
from grandrounds.data.partition.files import sites_and_problem
from grandrounds.data.site import DatasetLocation, locate_dataset
from grandrounds.deployment.workspace import held_workspace
from grandrounds.errors import ConfigurationError, DataError, UsageError
from grandrounds.evaluation.bootstrap import Cases, joined
from grandrounds.evaluation.clinical.adaptation import Adaptation, LabelHead, read_recalibration
from grandrounds.evaluation.clinical.thresholds import FixedPoint
from grandrounds.evaluation.clinical.validation import Request
from grandrounds.evaluation.external import LabelledImages, labels_are_groups, write_predictions
from grandrounds.evaluation.grouping import grouping_of
from grandrounds.federation.server.record import SUMMARY
from grandrounds.files import read_json_object, replacing, write_json
from grandrounds.options import Range, require_type, require_value
from grandrounds.protocol.names import VALIDATION
from grandrounds.reporting.external.prediction import (
    AdaptedPlace,
    Ensemble,
    Labels,
    Place,
    PlaceImages,
    PortableSums,
    PositiveGroup,
    TrainedModel,
    adapt_place,
    features_like,
    last_layer,
    operating_point,
    place_of,
    positive_group,
    predict_place,
    read_images,
    trained_model,
)
from grandrounds.reporting.external.result import ExternalResult, external_result, plain_scores, run_at
from grandrounds.reporting.figures.images import JudgedImages, failure_figure
from grandrounds.reporting.run import HELD_OUT, ReadRun
from grandrounds.reporting.runs import SELECTED, read_record, read_tests, record_folder, run_name

Locations = Mapping[str, DatasetLocation]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The scores and predictions of a run's model at a place.

    Attributes:
        result: without counts below the minimum, names of images, or patients.
        trained: the model, and what it was trained for.
        labels: what the labels of the place are.
        images: test images by site.
        place: what was predicted.
        tested: the place as a run, with the records of its sites.
        adapted: what a model that was adapted to the place does there, where that was asked for.
    """

    result: ExternalResult
    trained: TrainedModel
    labels: Labels
    images: Mapping[str, LabelledImages]
    place: Place
    tested: ReadRun
    adapted: AdaptedPlace | None = None

    def tables(self) -> dict[str, Any]:
        """All scores as plain values, see :func:`grandrounds.reporting.external.result.plain_scores`."""
        return plain_scores(self.tested, self.place, self.labels, self.adapted)

    def scores(self) -> pd.DataFrame:
        """Scores of each site of the place, their ``mean``, and of all images together (``pooled``), one row each."""
        content = self.tables()
        rows = {**content["sites"], "mean": content["mean"], "pooled": content["pooled"]}
        return pd.DataFrame.from_dict(rows, orient="index").rename_axis("site")

    def write(self, path: Path | str) -> None:
        """Write :attr:`result` as JSON, for the argument ``external`` of :func:`grandrounds.report`."""
        write_json(Path(path), self.result.to_json())

    def write_predictions(self, path: Path | str) -> None:
        """Write the prediction of every image as CSV; the file names images and must stay at the place."""
        problem, labels = self.trained.problem, self.labels
        names = (problem.classes, labels.vocabulary)
        write_predictions(Path(path), self.place.sites, problem.kind, *names, labels.grouping)

    def draw_failures(self, path: Path | str) -> None:
        """Draw the most confident errors as PNG; the file shows patients' images and must stay at the place.

        Raises:
            ConfigurationError: if an image may have several of the labels.
        """
        problem = self.trained.problem
        problem.kind.require_exclusive("--failures", "--predictions writes errors for each image")
        predictions = self.place.sites.values()
        judged = JudgedImages(
            np.concatenate([test.images for test in self.images.values()]),
            np.concatenate([site.labels for site in predictions]),
            np.concatenate([site.probabilities for site in predictions]),
            problem.kind.decide(np.concatenate([site.decisions for site in predictions])),
            problem.classes,
        )
        figure = failure_figure(judged, ", ".join(self.images))
        with replacing(Path(path)) as stream:
            figure.savefig(stream, format=Path(path).suffix[1:] or "png")


def evaluate(
    run: Workspace | Path | str,
    place: Sites | Path | str | Locations,
    *,
    name: str | None = None,
    groups: Mapping[str, Sequence[str]] | None = None,
    positive: Sequence[str] | None = None,
    sensitivity: float = 0.9,
    threshold: float | None = None,
    prevalences: Sequence[float] = (),
    recalibrate: float | str = 0.0,
    sums: Path | str | None = None,
    ensemble: Ensemble = False,
    minimum: int = 10,
    allow_overlap: bool = False,
    of_classes: Sequence[str] = (),
    command: str = "grandrounds.evaluate",
    progress: bool = True,
) -> Evaluation:
    """Test the selected model of a finished run on the test images of a place.

    Args:
        run: a run, its workspace, or a model file beside its ``summary.json``.
        place: the sites of a partition, its folder, or where the images of each site are.
        name: of the place; by default that of its folder.
        groups: classes by name of their group, if groups are to be scored; the first must not be missed.
        positive: classes or groups that count as positive; by default the first group.
        sensitivity: of the operating point on the validation images of the run, above 0 and at most 1.
        threshold: the operating point, stated instead of fixed on images; 0 to 1.
        prevalences: for predictive values, each above 0 and below 1; the place's own is always there.
        recalibrate: share of the cases on which intercept and temperature are fitted, 0 to 0.9; or how the model is adapted
            to the place and tested on the rest, see :func:`~grandrounds.evaluation.clinical.adaptation.read_recalibration`.
        sums: of the training images, a file of :func:`grandrounds.export`, to which ``head:N`` adds the labels.
        ensemble: score the mean of the probabilities of the sites' own models in place of the selected model: of those that
            are in the run's folder, or of these files, each ``own.pt`` with its ``own.json`` beside it.
        minimum: smallest count of patients in the result.
        allow_overlap: go on where the place took part in the run, with a warning.
        of_classes: outputs that need labels of classes, by the names that the error gives them.
        command: what was typed, for the record.
        progress: show the steps on the standard error if they take long.

    Raises:
        ConfigurationError: if the run has no model, or the place or one of its images took part in the run.
        DataError: if a label is unknown, or too many images cannot be read.
        UsageError: if the labels do not give what is asked for; no image is read then.
    """
    require_type(name, str | None, "name")
    require_type(positive, list[str] | None, "positive")
    require_type(threshold, float | None, "threshold")
    require_type(prevalences, list[float], "prevalences")
    if groups is not None:
        require_mapping(groups, "groups", '{"malignant": ["melanoma"], "benign": ["nevus"]}')
    require_value(sensitivity, float, Range(0, 1, open_minimum=True), "sensitivity")
    share, adaptation = read_recalibration(recalibrate)
    if sums is not None and not isinstance(adaptation, LabelHead):
        raise UsageError("--sums is for --recalibrate head:N")
    of_classes = [*of_classes, *(["--recalibrate"] if adaptation else [])]
    place = place if isinstance(place, Sites | Mapping) else Sites.read(place)
    folder, locations = folder_of(run), _locations(place)
    trained = trained_model(folder, ensemble)
    added = PortableSums.read(as_path(sums, "sums"), trained) if sums is not None else None
    labels = _labels(trained, locations, groups, positive)
    _require_possible(labels, of_classes, threshold is not None or bool(prevalences) or share > 0)
    if adaptation:
        trained.problem.kind.require_exclusive(f"--recalibrate {recalibrate}", "give a share of the cases")
    with steps_on(notes(), progress) as step:
        step("reading the run")
        record = read_record(trained.record, run_name(folder))
        if trained.is_ensemble:
            record = replace(record, name=f"{record.name}, ensemble of {trained.members}")
        point = _point(trained, record, labels.positive, sensitivity, threshold)
        images = read_images(trained, record, locations, labels.vocabulary, allow_overlap, step)
        for line in images.remarks:
            say(notes(), line)
        predictions = predict_place(trained, images, step)
        if isinstance(point, str):
            say(notes(), point)
            point = None
        seen = place_of(name or _name_of(place, locations), trained.files, locations, images, predictions)
        limit = max(minimum, *(location.min_support for location in locations.values()))
        step("computing scores and intervals")
        tested = run_at(record, seen, labels)
        adapted = _adapted(adaptation, trained, record, seen, labels, images, added) if adaptation else None
        wanted = Request(point, prevalences, share, limit)
        result = external_result(record, tested, seen, labels, wanted, command, adapted)
    return Evaluation(result, trained, labels, images.sites, seen, tested, adapted)


def score_held_out(workspace: Path, sites: Sites, allow_overlap: bool, progress: bool) -> dict[str, Evaluation]:
    """As :meth:`grandrounds.Run.score_held_out`, whose arguments these are."""
    results = record_folder(workspace)
    tested = {}
    with held_workspace(workspace):
        for site in sites.held_out:
            place, ensemble = Sites((site,), sites.folder), not (results / SELECTED).is_file()
            tested[site] = evaluate(
                workspace, place, name=site, ensemble=ensemble, allow_overlap=allow_overlap, progress=progress
            )
            tested[site].write(results / f"held_out_{site}.json")
        records = {site: found.tested.tests.sites[site] for site, found in tested.items()}
        scores = {site: {"images": found.images, "exact": dict(found.exact)} for site, found in records.items()}
        write_json(results / SUMMARY, {**read_json_object(results / SUMMARY), HELD_OUT: scores})
    return tested


def located(
    sites_dir: Path | None, chosen: Sequence[str] | None, manifest: Path | None, root: Path | None
) -> dict[str, DatasetLocation]:
    """Where the images of each site are: of a partition, or of one manifest.

    Args:
        sites_dir: a partition.
        chosen: sites of the partition; None for all.
        manifest: in place of a partition.
        root: folder or archive of the manifest's images.

    Raises:
        UsageError: if neither a partition, nor a manifest with its root is given.
        ConfigurationError: if a site or the images are not there.
        DataError: if the manifest is none, or no labelled test image is there; how to make one of a table is named.
    """
    if sites_dir is not None and manifest is None and root is None:
        return _of_partition(sites_dir, chosen)
    if sites_dir is not None or manifest is None or root is None or chosen:
        raise UsageError("give either --sites-dir (and --site), or --manifest with --root")
    if not root.exists():
        raise ConfigurationError(f"--root: there is no file or folder {root}")
    try:
        _require_readable(manifest, root)
    except DataError as error:
        own = [] if manifest.is_dir() else ["--root", str(root)]
        command = shlex.join(["grandrounds", "import", str(manifest), *own, "--scheme", "external", "--out"])
        raise DataError(f"{error}; or make a place of it, which --sites-dir DIR names: {command} DIR") from error
    return {manifest.stem: DatasetLocation(manifest, root)}


def _require_readable(manifest: Path, root: Path) -> None:
    """Refuse a manifest if there are labelled test images and none of them can be read."""
    records = [record for record in read_manifest(manifest, split="test") if record.split == "test" and record.label]
    with open_images(root) as reader:
        if records and not any(_is_readable(reader, record.image) for record in records):
            reader.encoded(records[0].image)


def _is_readable(reader: ImageReader, name: str) -> bool:
    with suppress(DataError):
        reader.encoded(name)
        return True
    return False


def _adapted(
    adaptation: Adaptation,
    trained: TrainedModel,
    record: ReadRun,
    seen: Place,
    labels: Labels,
    images: PlaceImages,
    added: PortableSums | None,
) -> AdaptedPlace:
    def home() -> Cases:
        problem = trained.problem
        predictions = read_tests(trained.folder, record.log.sites, VALIDATION, problem.kind, problem.classes)
        if not predictions or trained.is_ensemble:
            raise ConfigurationError(
                "--recalibrate shares: the run has no predictions for its sites' validation images, on which the model is "
                "calibrated first; take labels:N"
            )
        return joined([questions[0] for questions in predictions.values()])

    with_sums = (lambda: (*added.to_solve, features_like(added, trained, images))) if added else None
    return adapt_place(adaptation, record, seen, labels, home, lambda: last_layer(trained, images), with_sums)


def _locations(place: Sites | Locations) -> Locations:
    if not isinstance(place, Sites):
        return place
    if place.folder is None:
        raise UsageError("synthetic sites have no test images before they train; give a partition")
    return _of_partition(place.folder, place.names)


def _name_of(place: Sites | Locations, locations: Locations) -> str:
    """The name of the partition's folder, else of the first site."""
    folder = place.folder if isinstance(place, Sites) else None
    return folder.absolute().name if folder else next(iter(locations))


def _of_partition(sites_dir: Path, chosen: Sequence[str] | None) -> dict[str, DatasetLocation]:
    sites, problem = sites_and_problem(sites_dir)
    for name in chosen or ():
        if name not in sites:
            raise ConfigurationError(f"--site: {sites_dir} has no site {name!r}; it has {', '.join(sites)}")
    return {name: locate_dataset(name, problem["dataset"], [sites_dir]) for name in sites if name in (chosen or sites)}


def _labels(
    trained: TrainedModel,
    locations: Locations,
    grouped: Mapping[str, Sequence[str]] | None,
    positive: Sequence[str] | None,
) -> Labels:
    """What the labels of the place are, and which of them are positive."""
    classes = trained.problem.classes
    if grouped is not None or len(positive or ()) > 1:
        trained.problem.kind.require_exclusive("--groups and several classes of --positive", "name one of them")
    grouping = grouping_of(grouped, classes, trained.problem.kind) if grouped is not None else None
    by_group = grouped is not None and labels_are_groups(locations, classes, list(grouped))
    group = positive_group(positive, classes, grouping, by_group)
    return Labels(tuple(grouped or ()) if by_group else tuple(classes), grouping, by_group, group)


def _require_possible(labels: Labels, of_classes: Sequence[str], asks_for_group: bool) -> None:
    """Refuse what the labels cannot give, before an image is read."""
    if of_classes and labels.by_group:
        raise UsageError(f"{of_classes[0]}: the labels are groups of classes, but errors and offsets are of classes")
    if labels.positive is None and asks_for_group:
        raise UsageError("--threshold, --prevalence and --recalibrate need a positive group: name --positive")


def _point(
    trained: TrainedModel, record: ReadRun, positive: PositiveGroup | None, sensitivity: float, threshold: float | None
) -> FixedPoint | str | None:
    """The operating point, or in one line why there is none; None without a positive group."""
    if positive is None:
        return None
    if threshold is not None:
        return FixedPoint(threshold, "the command line")
    if trained.is_ensemble:
        return "there is no operating point: no site has predictions of the ensemble; give --threshold"
    problem = trained.problem
    return operating_point(trained.folder, record.log.sites, problem.classes, positive, sensitivity, problem.kind)
