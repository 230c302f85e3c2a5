"""A place before and while it is predicted: what its labels are, the operating point, images of the run, and predictions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grandrounds.checks import as_path, require_known_label
from grandrounds.data.batches import eval_batches
from grandrounds.data.images.decoding import image_digests
from grandrounds.data.leaks import PICTURES, copies_of_kept
from grandrounds.data.manifest import manifest_digest
from grandrounds.data.site import DatasetLocation
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.evaluation.bootstrap import Cases, joined_questions
from grandrounds.evaluation.clinical.adaptation import Adaptation, AtPlace
from grandrounds.evaluation.clinical.binary import POSITIVE, binary_cases
from grandrounds.evaluation.clinical.results import Adapted
from grandrounds.evaluation.clinical.thresholds import FixedPoint, point_of_cases, point_of_counts
from grandrounds.evaluation.curves.summed import sum_curves
from grandrounds.evaluation.external import ImagePredictions, LabelledImages, load_test_images, predict_images
from grandrounds.evaluation.grouping import Grouping
from grandrounds.evaluation.prediction import tensors_of
from grandrounds.evaluation.score import MIN_CASES, ScoreSheet
from grandrounds.federation.server.record import SUMMARY
from grandrounds.federation.site.context import choose_device
from grandrounds.federation.site.store import DIGESTS
from grandrounds.files import file_digest, read_json_object
from grandrounds.methods.ridge.leave import kept_sums, notes_of, used_counts
from grandrounds.methods.ridge.phases import CLASS_COUNTS, CLASS_PATIENTS
from grandrounds.models.closed_form.sums import Sums, class_weights, clipped
from grandrounds.models.depths import depth_features
from grandrounds.models.inference.forward import BATCH, Forward
from grandrounds.models.site_model import OWN
from grandrounds.models.split import split_last_layer
from grandrounds.models.trained import SavedNetwork, read_site_models, trained_models
from grandrounds.ordering import natural_sorted
from grandrounds.plain import to_plain
from grandrounds.privacy.gate.treatments import DEFAULT_SUM_PATIENTS
from grandrounds.protocol.names import SERVER, VALIDATION
from grandrounds.protocol.problem import Problem
from grandrounds.protocol.task import Task
from grandrounds.remedies import missing
from grandrounds.reporting.external.result import Appearance, Overlap, appearance_of, run_at
from grandrounds.reporting.run import FINISHED, ReadRun, scores_of
from grandrounds.reporting.runs import RECORD_PLACES, SELECTED, columns_in, decoded_images, read_site_curves, read_tests
from grandrounds.reporting.tables import format_list
from grandrounds.seeding import numpy_generator

SUMS_FILE = "sums.safetensors"
_OF_FEATURES = ("image_size", "channels", "preprocessing", "backbone", "head", "intensities")
"""Options of a problem from which features follow, beside the frozen layers."""


@dataclass(frozen=True, eq=False)
class PortableSums:
    """Sums of all sites, with what is needed to add images to them.

    Attributes:
        sums: of training images.
        penalty: nu, of the run.
        views: over which the features of an image are averaged.
        largest_norm: to which they are clipped.
        class_weights: of images in the sums, in the order of the classes; of a class without images the largest.
        problem: what a model must share: digest of the ``frozen`` layers, and options of the problem.
    """

    sums: Sums
    penalty: float
    views: tuple[str, ...]
    largest_norm: float
    class_weights: tuple[float, ...]
    problem: Mapping[str, Any]

    @classmethod
    def of_run(cls, run: Path) -> PortableSums:
        """The sums of a finished run.

        Args:
            run: the workspace of a simulation, or the run's folder at the server.

        Raises:
            ConfigurationError: if the server has kept no sums, nothing tells that each class is of enough patients, or the
                record does not state how the images became features.
        """
        summary, method, kept = kept_sums(run)
        options = summary["configuration"]
        solved = notes_of(summary)
        _require_stated(run, options["problem"], [] if solved.get("views") else ["executor.views"])
        problem = Problem.from_dict(options["problem"])
        patients, counts = method.get(CLASS_PATIENTS), method[CLASS_COUNTS]
        if not patients:
            raise ConfigurationError(f"--with-sums: {run} has not noted the patients of each class; run the job again")
        behind = zip(problem.classes, sum(patients.values()), strict=True)
        few = [name for name, count in behind if 0 < count < DEFAULT_SUM_PATIENTS]
        if few:
            raise ConfigurationError(
                f"--with-sums: {run} has fewer than {DEFAULT_SUM_PATIENTS} training patients of {', '.join(few)}, whose "
                "images could be read from the sums; leave it out of problem.classes"
            )
        sums = list(kept.values())
        total = sum(sums[1:], start=sums[0])
        used = used_counts(counts, options["weight_multiple"], counts)
        weights = class_weights(used, options["class_balance"])
        of_classes = tuple(weights.where(weights > 0, weights.max()).tolist())
        shared = _shared(problem, options["frozen"])
        return cls(total, solved["penalty"], tuple(solved["views"]), options["largest_norm"], of_classes, shared)

    @property
    def to_solve(self) -> tuple[Sums, float, tuple[float, ...]]:
        """The sums, the penalty and the class weights."""
        return self.sums, self.penalty, self.class_weights

    def to_bytes(self) -> bytes:
        """As the content of a file: safetensors, with all but the sums in its header."""
        from safetensors.torch import save

        header = {name: value for name, value in vars(self).items() if name != "sums"}
        return bytes(save(self.sums.packed(), {"sums": json.dumps(header)}))

    @classmethod
    def read(cls, path: Path, trained: TrainedModel) -> PortableSums:
        """Read a file of :meth:`to_bytes`, for a model.

        Raises:
            DataError: if it is no such file.
            ConfigurationError: if it is of another network, other images or other classes, or the model's record does not
                state its own; naming the option.
        """
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="pt") as stream:
                header: dict[str, Any] = json.loads(stream.metadata()["sums"])
                sums = Sums.unpacked({name: stream.get_tensor(name).double() for name in stream.keys()})  # noqa: SIM118
            lists = {name: tuple(header[name]) for name in ("views", "class_weights")}
            portable = cls(sums, **{**header, **lists, "problem": dict(header["problem"])})
            if sums.targets.shape[1] != len(portable.class_weights):
                raise ValueError(
                    f"targets of shape {tuple(sums.targets.shape)} for {len(portable.class_weights)} classes"
                )
        except (OSError, SafetensorError, ValueError, LookupError, TypeError, RuntimeError) as error:
            raise DataError(
                f"{path} has no sums ({error}); grandrounds export --with-sums writes {SUMS_FILE}"
            ) from error
        options = read_json_object(trained.record / SUMMARY)["configuration"]
        _require_stated(trained.record, options["problem"])
        for name, value in _shared(trained.problem, options.get("frozen")).items():
            if portable.problem.get(name) != value:
                raise ConfigurationError(
                    f"{path}: the sums are of another {name} ({portable.problem.get(name)}) than {trained.record} ({value})"
                )
        return portable


def _require_stated(run: Path, problem: Mapping[str, Any], missing: Sequence[str] = ()) -> None:
    """Refuse a record that leaves to today's defaults how images became features."""
    if missing := [*missing, *(f"problem.{name}" for name in _OF_FEATURES if name not in problem)]:
        raise ConfigurationError(
            f"{run}: the record does not state {', '.join(missing)}, so features of other images cannot be added to the "
            "sums; run the job again, with the sites' part of it at the server"
        )


def _shared(problem: Problem, frozen: str | None) -> dict[str, Any]:
    options = {name: getattr(problem, name) for name in _OF_FEATURES}
    return {"frozen": frozen, "classes": list(problem.classes), **options}


@dataclass(frozen=True, eq=False)
class AdaptedPlace:
    """What an adaptation did at a place; for the place itself.

    Attributes:
        how: in words.
        images: whose labels were used.
        cases: that they are of.
        by_class: what was fitted, by name and class.
        before: the other images as a run's test, with the model as it is.
        after: the same with the adapted one.
    """

    how: str
    images: int
    cases: int
    by_class: Mapping[str, Mapping[str, float]]
    before: ReadRun
    after: ReadRun

    def plain(self) -> dict[str, Any]:
        """As plain values, with the scores of each class before and after."""
        sheets = {name: scores_of(run, 1).pooled for name, run in (("before", self.before), ("after", self.after))}
        scores = {name: to_plain({"scores": one.scores, "classes": one.classes}) for name, one in sheets.items() if one}
        return {"how": self.how, "images": self.images, "by_class": dict(self.by_class), **scores}

    def shown(self, minimum: int, hidden: Sequence[bool]) -> Adapted:
        """As it may leave: counts by class of the rest would give away those of the few labels that were used.

        Args:
            minimum: the smallest count that may be shown.
            hidden: classes whose counts are hidden everywhere.
        """
        before, after = (self._sheet(run, minimum, hidden) for run in (self.before, self.after))
        if not 0 < self.cases < minimum:
            return Adapted(self.how, self.images, before, after)
        return Adapted(self.how, None, *(replace(sheet, images=None, cases=None) for sheet in (before, after)))

    @staticmethod
    def _sheet(run: ReadRun, minimum: int, hidden: Sequence[bool]) -> ScoreSheet:
        sheet = scores_of(run, minimum, hidden).pooled
        assert sheet is not None
        scores = {name: score if score.few else score._replace(cases=None) for name, score in sheet.scores.items()}
        confidence = {name: value for name, value in sheet.confidence.items() if name == "ece"}
        return replace(sheet, scores=scores, classes={}, references={}, shares={}, confidence=confidence)


def adapt_place(
    adaptation: Adaptation,
    run: ReadRun,
    place: Place,
    labels: Labels,
    home: Callable[[], Cases],
    last_layer: Callable[[], tuple[Tensor, Tensor]],
    sums: Callable[[], tuple[Sums, float, tuple[float, ...], Tensor]] | None = None,
) -> AdaptedPlace:
    """Adapt a run's model and test it on the images whose labels were not used.

    Labels are of cases drawn at random, all images of a case together; the same place always gives the same ones. Before
    and after, the most probable class is predicted.

    Args:
        adaptation: how.
        run: whose model it is.
        place: what was predicted.
        labels: what they are; classes, not groups.
        home: gives predictions for the run's validation images.
        last_layer: gives what the model's last layer reads of the place's images, and its weights.
        sums: gives sums of training images, their penalty and class weights, and features of the place's images; None
            without sums.

    Raises:
        ConfigurationError: if more than half of the images would be fitted on.
    """
    predictions = list(place.sites.values())
    probabilities, truth = (
        np.concatenate([getattr(one, name) for one in predictions]) for name in ("probabilities", "labels")
    )
    fitted, cases = _drawn(place.sites, adaptation.images)
    if 2 * fitted.sum() > len(truth):
        raise ConfigurationError(
            f"--recalibrate: {fitted.sum()} of {len(truth)} labelled images would be fitted on, and at least half must be "
            "left to test on; take fewer labels, or label more images"
        )
    rows = np.flatnonzero(fitted)
    fit = adaptation.adapted(AtPlace(run.classes, probabilities, truth[rows], rows, home, last_layer, sums))
    named = {
        name: dict(zip(run.classes, values.round(4).tolist(), strict=True)) for name, values in fit.by_class.items()
    }
    before, after = (
        run_at(run, replace(place, sites=_rest(place.sites, ~fitted, of, of)), labels)
        for of in (probabilities, fit.probabilities)
    )
    return AdaptedPlace(fit.how, len(rows), cases, named, before, after)


def _drawn(sites: Mapping[str, ImagePredictions], images: int) -> tuple[NDArray[np.bool_], int]:
    """Whether each image is one of the first cases in a random order that have so many images, and how many cases."""
    named = [f"{site}\n{case}" for site, one in sites.items() for case in (one.groups or one.names)]
    cases, of_image, sizes = np.unique(np.array(named, np.str_), return_inverse=True, return_counts=True)
    order = numpy_generator("external", "adaptation").permutation(len(cases))
    before = np.cumsum(sizes[order]) - sizes[order]
    chosen = order[before < images]
    return np.isin(of_image, chosen), len(chosen)


def _rest(
    sites: Mapping[str, ImagePredictions],
    kept: NDArray[np.bool_],
    probabilities: NDArray[np.float64],
    decided: NDArray[np.float64],
) -> dict[str, ImagePredictions]:
    """The kept images of each site that has some, with these probabilities and those of decisions."""
    kept_images, start = {}, 0
    for site, predictions in sites.items():
        rows = np.flatnonzero(kept[start : start + len(predictions.names)])
        decisions, risks = (one[start + rows] for one in (decided, probabilities))
        names, groups = (tuple(of[row] for row in rows) if of else () for of in (predictions.names, predictions.groups))
        if len(rows):
            kept_images[site] = ImagePredictions(names, predictions.labels[rows], risks, decisions, groups)
        start += len(predictions.names)
    return kept_images


Ensemble = bool | Sequence[Path | str]
"""Whether the sites' own models are an ensemble: those in the run's folder, or these files, which sites have handed over."""


@dataclass(frozen=True)
class TrainedModel:
    """What predicts: one network, or several whose probabilities are averaged.

    Attributes:
        record: the folder with the run's summary.
        problem: of the run; its classes are in the order of the outputs.
        networks: at least one.
        image_moments: of the run's training images, see
            :func:`~grandrounds.evaluation.clinical.image_moments.training_moments`.
    """

    record: Path
    problem: Problem
    networks: tuple[SavedNetwork, ...]
    image_moments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """The folder that has a folder for each site: the results, or the state of a run that was killed."""
        return self.record.parent if self.record.name == SERVER else self.record

    @property
    def is_ensemble(self) -> bool:
        """Whether several networks are averaged."""
        return len(self.networks) > 1

    @property
    def files(self) -> dict[str, Path]:
        """The file of each network: ``model``, of an ensemble ``model 1`` and so on."""
        paths = [network.path for network in self.networks]
        return {f"model {number}" if self.is_ensemble else "model": path for number, path in enumerate(paths, 1)}

    @property
    def members(self) -> str:
        """The networks of an ensemble in words, each by its site's folder or its file's name."""
        paths = [network.path for network in self.networks]
        return ", ".join(path.parent.name if path.stem == OWN else path.stem for path in paths)


def trained_model(path: Path, ensemble: Ensemble = False) -> TrainedModel:
    """Find what predicts: of a run's workspace or results the selected model, or a model file beside ``summary.json``.

    Args:
        path: of the run, or of its model file.
        ensemble: whether it is the average of the sites' own models in place of that.

    Raises:
        ConfigurationError: if there is no such file or folder, no summary, the summary is damaged, the run has left
            no model, or fewer than two sites have; the message says what was looked for.
    """
    if not path.exists():
        raise ConfigurationError(missing(path, f"a run's workspace or a model file beside its {SUMMARY}"))
    folder = path.parent if path.is_file() else path
    if path.is_dir():
        folder = next((path / place for place in RECORD_PLACES if (path / place / SUMMARY).is_file()), path)
    if not (folder / SUMMARY).is_file():
        raise ConfigurationError(
            f"there is no {folder / SUMMARY}, which says what the model was trained for; name the workspace of a finished "
            f"run, or a model file beside its {SUMMARY}"
        )
    summary = read_json_object(folder / SUMMARY)
    weights = path if path.is_file() else folder / SELECTED
    if ensemble is False and not weights.is_file():
        raise ConfigurationError(f"{folder} has no {SELECTED}: {_why_not(summary)}")
    content = summary.get("configuration", {}).get("problem")
    if not isinstance(content, dict):
        raise ConfigurationError(f"{folder / SUMMARY} does not say what the model was trained for; run the job again")
    problem, moments = Problem.from_dict(content), summary.get("image_moments", {})
    if ensemble is False:
        seed = summary["configuration"].get("seed")
        network = SavedNetwork(problem.model_spec(pretrained=False), weights, seed)
        return TrainedModel(folder, problem, (network,), moments)
    files = _members(ensemble, path, folder, summary)
    return TrainedModel(folder, problem, read_site_models(files, problem, summary.get("run_id", "")), moments)


def _members(ensemble: Ensemble, path: Path, folder: Path, summary: dict[str, Any]) -> list[Path]:
    """The files of an ensemble, at least two."""
    if isinstance(ensemble, bool):
        where, files = f"{path} has", _own_models(path, folder, summary)
    else:
        given = ensemble if isinstance(ensemble, Sequence) and not isinstance(ensemble, str) else [ensemble]
        where, files = "given were", [as_path(file, "a model of the ensemble") for file in given]
    if len(files) < 2:
        raise ConfigurationError(
            f"an ensemble needs the own models of two sites or more, and {where} {len(files)}: sites release them with "
            f"executor.release_model of a job with model=own, or hand over {OWN}.pt and {OWN}.json (--member)"
        )
    return files


def _own_models(path: Path, folder: Path, summary: dict[str, Any]) -> list[Path]:
    """The own models that sites have released into a run's record, else those that a simulation has left."""
    simulated = path / "state" / str(summary["configuration"].get("run_name"))
    for place in (folder, simulated):
        sites = natural_sorted(file.parent.name for file in place.glob(f"*/{OWN}.json"))
        if sites:
            return [place / site / f"{OWN}.pt" for site in sites]
    return []


def _why_not(summary: dict[str, Any]) -> str:
    status = summary.get("status")
    if status != FINISHED:
        return f"the run is not finished (status {status}); the same command goes on with it"
    method = summary.get("configuration", {}).get("method", "its method")
    return (
        f"{method} has no common model, every site kept its own; take --ensemble where the sites' models are here, or a "
        "run of another method"
    )


NO_POINT = (
    "there is no operating point: the run has no predictions for its sites' validation images; give --threshold, or run "
    "the job again"
)
COUNTS_OF_CLASSES = (
    "there is no operating point: the sites sent counts of single classes of their validation images, and the positive "
    "group has several; name one class, or give --threshold"
)


@dataclass(frozen=True)
class PositiveGroup:
    """The positive group: its name, the indices of its classes, and those of its labels where labels are groups."""

    name: str
    classes: tuple[int, ...]
    labels: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Labels:
    """What the labels of a place are.

    Attributes:
        vocabulary: of the labels: the model's classes, or groups of them.
        grouping: of the model's classes, if there is one.
        by_group: whether the labels are groups.
        positive: the positive group, if there is one.
    """

    vocabulary: tuple[str, ...]
    grouping: Grouping | None
    by_group: bool
    positive: PositiveGroup | None


def positive_group(
    names: Sequence[str] | None, classes: Sequence[str], grouping: Grouping | None, by_group: bool
) -> PositiveGroup | None:
    """Resolve the names of the positive group, which are classes or groups; by default the first group.

    Args:
        names: what was named; None where nothing was.
        classes: the model's vocabulary.
        grouping: of the classes, if there is one.
        by_group: whether the labels of the images are groups.

    Returns:
        None where nothing was named and there are no groups.

    Raises:
        ConfigurationError: if a name is unknown, the group has all classes, or it divides a group that is a label.
    """
    if names is None:
        if grouping is None:
            return None
        names = [grouping.names[0]]
    groups = {name: number for number, name in enumerate(grouping.names)} if grouping else {}
    for name in names:
        try:
            require_known_label(name, [*classes, *groups], "--positive")
        except DataError as error:
            raise ConfigurationError(str(error)) from error
    members = set(names)
    if grouping:
        groups_of_classes = zip(classes, grouping.group_of.tolist(), strict=True)
        members |= {name for name, group in groups_of_classes if grouping.names[group] in names}
    chosen = tuple(number for number, name in enumerate(classes) if name in members)
    if not 0 < len(chosen) < len(classes):
        raise ConfigurationError("--positive: name some of the classes and not all of them")
    if not by_group:
        return PositiveGroup(", ".join(names), chosen, chosen)
    if not set(names) <= set(groups):
        raise ConfigurationError(f"--positive: the labels are groups; name one of {', '.join(groups)}")
    return PositiveGroup(", ".join(names), chosen, tuple(sorted(groups[name] for name in names)))


def operating_point(
    folder: Path, sites: Sequence[str], classes: Sequence[str], positive: PositiveGroup, sensitivity: float, task: Task
) -> FixedPoint | str:
    """Fix the threshold on the run's validation images: on their predictions, else on the counts that the sites sent.

    Args:
        folder: the run's results, with a folder for each site.
        sites: of the run.
        classes: the model's vocabulary.
        positive: the group.
        sensitivity: to reach on these images.
        task: of the run; where classes do not exclude each other, the group is one of them.

    Returns:
        The point, or in one line why there is none.

    Raises:
        DataError: if a file of predictions or counts is damaged.
    """
    predicted = read_tests(folder, sites, VALIDATION, task, classes)
    if predicted:
        together = joined_questions(list(predicted.values()))
        chosen = together[positive.classes[0]] if len(together) > 1 else binary_cases(together[0], positive.classes)
        source = f"{len(chosen.labels)} validation images of {len(predicted)} training sites"
        other, cases = chosen.positives()[1 - POSITIVE], chosen.positives()[POSITIVE]
        return point_of_cases(chosen, source, sensitivity) or _too_few(int(cases), int(other))
    curves = read_site_curves(folder, sites, VALIDATION, classes)
    if not curves:
        return NO_POINT
    if len(positive.classes) > 1:
        return COUNTS_OF_CLASSES
    name = classes[positive.classes[0]]
    counts = sum_curves(list(curves.values()), classes).classes.get(name)
    source = (
        f"counts of the validation images of {sum(name in curve.classes for curve in curves.values())} training sites"
    )
    if counts is None:
        return _too_few(0, 0)
    cases, other = round(float(counts.positives.sum())), round(float(counts.negatives.sum()))
    return point_of_counts(counts, source, sensitivity) or _too_few(cases, other)


def _too_few(positive: int, other: int) -> str:
    return (
        f"there is no operating point: the run's validation images have {positive} positive cases and {other} others, and "
        f"at least {MIN_CASES} of each are needed; give --threshold"
    )


def overlap_with(
    folder: Path, sites: Sequence[str], places: Iterable[str], digests: Mapping[str, Sequence[str]]
) -> Overlap:
    """Compare names of places with a run's sites, and digests of test images with those of the run's images.

    Args:
        folder: the run's results, with a folder for each site.
        sites: of the run.
        places: names of what is evaluated.
        digests: of the test images, by place; an empty digest identifies nothing.

    Raises:
        ConfigurationError: if a file of digests is damaged.
    """
    known: dict[str, set[str]] = {}
    for site in sites:
        path = folder / site / DIGESTS
        if path.is_file():
            content = read_json_object(path).get("images")
            if not isinstance(content, list):
                raise ConfigurationError(f"{path} has no list of images; run the job again")
            known[site] = set(content)
    together = set().union(*known.values())
    images = sum(digest in together for of_site in digests.values() for digest in of_site if digest)
    shared = tuple(place for place in places if place in sites)
    return Overlap(images, shared, tuple(site for site in sites if site not in known))


Step = Callable[[str], None]
LINEAR_ON = 64
"""Images on which a last layer is checked."""


@dataclass(frozen=True, eq=False)
class PlaceImages:
    """The test images of a place, by site, what they have in common with the run, and how they look beside its images."""

    sites: Mapping[str, LabelledImages]
    overlap: Overlap
    appearance: Appearance

    @property
    def remarks(self) -> list[str]:
        """What must be known before a score is read, the most serious first."""
        message, unknown = self.overlap.message, self.overlap.not_compared
        warning = [f"WARNING: {message}: this is no external validation"] if message else []
        if unknown:
            warning.append(
                f"whether images are among those of {format_list(unknown)} is not known: the run's results have no "
                f"{DIGESTS} of these sites"
            )
        unreadable = [
            f"{name}: {test.unreadable} test images cannot be read and are left out"
            for name, test in self.sites.items()
            if test.unreadable
        ]
        return [*warning, *unreadable, self.appearance.finding]


@dataclass(frozen=True, eq=False)
class Place:
    """A place, and what was predicted there.

    Attributes:
        name: how people call it.
        sites: predictions by name of the sites that it consists of.
        columns: further columns of the manifests, the value of each image in the order of the sites.
        digests: SHA-256 of the model's file, or of each model of an ensemble, and of the manifests.
        unreadable: test images that could not be read.
        overlap: with the run's images.
        appearance: of the images, beside that of the run's.
    """

    name: str
    sites: Mapping[str, ImagePredictions]
    columns: Mapping[str, Sequence[str]]
    digests: Mapping[str, str]
    unreadable: int
    overlap: Overlap
    appearance: Appearance


def read_images(
    trained: TrainedModel,
    run: ReadRun,
    locations: Mapping[str, DatasetLocation],
    vocabulary: Sequence[str],
    allowed: bool,
    step: Step,
) -> PlaceImages:
    """Decode the test images of all sites of a place; unless ``allowed``, none may be of the run.

    Raises:
        ConfigurationError: if a site took part in the run, which is checked before an image is read, or an image did.
        DataError: if the images are not as they must be.
    """
    folder, problem = trained.folder, trained.problem
    named = overlap_with(folder, run.log.sites, locations, {})
    if named.sites and not allowed:
        raise ConfigurationError(
            f"{named.message}, so this is no external validation; evaluate another place, rename a site that is another "
            "hospital (grandrounds import --scheme external makes one site of all images), or add --allow-overlap"
        )
    images = {}
    with decoded_images() as cache:
        for name, location in locations.items():
            step(f"reading the images of {name}")
            images[name] = load_test_images(name, location, problem, vocabulary, cache)
    step("comparing the images with those of the run")
    digests = {name: image_digests(test.images) for name, test in images.items()}
    overlap = overlap_with(folder, run.log.sites, locations, digests)
    if overlap.shared_images and not allowed:
        raise ConfigurationError(
            f"{overlap.message}, so this is no external validation; leave these images out, or add --allow-overlap"
        )
    if (kept := folder.parent / PICTURES).is_file():
        alike = copies_of_kept(kept, np.concatenate([test.images for test in images.values()]))
        overlap = replace(overlap, alike=max(alike - overlap.shared_images, 0))
    appearance = appearance_of(trained.image_moments, ((image.images, image.shapes) for image in images.values()))
    return PlaceImages(images, overlap, appearance)


def predict_place(trained: TrainedModel, images: PlaceImages, step: Step) -> dict[str, ImagePredictions]:
    """Predictions of the run's model, or the mean of those of its sites' models, for each site of a place.

    Raises:
        ConfigurationError: if the model's file does not fit, or a prediction is not finite.
    """
    device = choose_device("auto")
    predictions: dict[str, list[ImagePredictions]] = {name: [] for name in images.sites}
    for network in trained.networks:
        model_of = trained_models(*network)
        for name, test in images.sites.items():
            step(f"predicting {len(test.names)} images of {name}")
            model = model_of((test.images, np.arange(len(test.names)))).to(device)
            predictions[name].append(
                predict_images(model, test, device, trained.problem.kind, trained.problem.test_view)
            )
    return {
        name: replace(
            each[0],
            probabilities=np.mean([one.probabilities for one in each], axis=0),
            decisions=np.mean([one.decisions for one in each], axis=0),
        )
        for name, each in predictions.items()
    }


def last_layer(trained: TrainedModel, images: PlaceImages) -> tuple[Tensor, Tensor]:
    """What the last layer of the run's model reads of all images of a place, and its weights.

    Returns:
        Shapes ``(n, features)``, in the order of the sites, and ``(features, classes)``, on the CPU.

    Raises:
        ConfigurationError: if the logits are not linear in what it reads, or there are several networks.
    """
    if trained.is_ensemble:
        raise ConfigurationError("--recalibrate head: an ensemble has no last layer of its own; take labels:N")
    device = choose_device("auto")
    problem = trained.problem
    model_of = trained_models(*trained.networks[0])
    features_of_sites, weights = [], torch.zeros(0)
    for test in images.sites.values():
        rows, inputs = np.arange(len(test.names)), tensors_of(test.images, device)
        model = model_of((test.images, rows)).to(device)
        before, weights = split_last_layer(model)
        features = Forward(before).logits(inputs, rows, problem.test_view)
        few = Forward(model).logits(inputs, rows[:LINEAR_ON], problem.test_view) - features[:LINEAR_ON] @ weights.T
        if not torch.allclose(few, few[:1].expand_as(few), rtol=1e-3, atol=1e-2):
            raise ConfigurationError(
                f"--recalibrate head: the last layer of {problem.backbone} is not linear in what it reads; take labels:N"
            )
        features_of_sites.append(features.cpu())
    return torch.cat(features_of_sites), weights.T.cpu()


def features_like(sums: PortableSums, trained: TrainedModel, images: PlaceImages) -> Tensor:
    """The features of all images of a place as those in sums: means over the same views, clipped to the same norm.

    Returns:
        Float64, shape ``(n, features)``, in the order of the sites, on the CPU.

    Raises:
        ConfigurationError: if there are several networks.
    """
    if trained.is_ensemble:
        raise ConfigurationError("--sums: an ensemble has no features of its own; take labels:N")
    device, model_of, features = choose_device("auto"), trained_models(*trained.networks[0]), []
    for test in images.sites.values():
        rows, inputs = np.arange(len(test.names)), tensors_of(test.images, device)
        model = model_of((test.images, rows)).to(device).eval()
        for batch in eval_batches(rows, BATCH):
            with torch.no_grad():
                views = [depth_features(model, inputs(batch, view)).double().cpu() for view in sums.views]
            features.append(torch.stack([clipped(one, sums.largest_norm) for one in views]).mean(dim=0))
    return torch.cat(features)


def place_of(
    name: str,
    files: Mapping[str, Path],
    locations: Mapping[str, DatasetLocation],
    images: PlaceImages,
    predictions: Mapping[str, ImagePredictions],
) -> Place:
    """The predicted place with the further columns of its manifests; a column that a site lacks is empty there.

    ``files`` are those of the networks, by what they are called.
    """
    models = {called: file_digest(path) for called, path in files.items()}
    manifests = {site: manifest_digest(location.manifest) for site, location in locations.items()}
    return Place(
        name,
        predictions,
        columns_in((location.manifest, predictions[site].names) for site, location in locations.items()),
        {**models, **manifests},
        sum(test.unreadable for test in images.sites.values()),
        images.overlap,
        images.appearance,
    )
