"""Before the first image of a place is predicted: which group is positive, the operating point, and images of the run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from grandrounds.checks import require_known_label
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.evaluation.bootstrap import joined_questions
from grandrounds.evaluation.clinical.binary import POSITIVE, binary_cases
from grandrounds.evaluation.clinical.operating import FixedPoint, point_of_cases, point_of_counts
from grandrounds.evaluation.curves.binned import sum_curves
from grandrounds.evaluation.grouping import Grouping
from grandrounds.evaluation.score import MIN_CASES
from grandrounds.federation.site.store import DIGESTS
from grandrounds.json_files import read_json_object
from grandrounds.protocol.names import VALIDATION
from grandrounds.protocol.task import Task
from grandrounds.reporting.external.result import Overlap
from grandrounds.reporting.predictions import read_site_curves, read_tests

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
    folder: Path,
    sites: Sequence[str],
    classes: Sequence[str],
    positive: PositiveGroup,
    sensitivity: float,
    task: Task,
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
