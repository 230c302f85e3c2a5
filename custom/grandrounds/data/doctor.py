"""Is this site's data fit for training, or for testing a finished model? Checked before the first round and on demand.

A failure would make results wrong (the same patient on both sides of a split) or training impossible (nothing labelled);
a warning is something a person should have seen. Each finding includes its remedy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Literal

import numpy as np

from grandrounds.data.appearance import appearance
from grandrounds.data.fitness import (
    SUPPORT_PARTS,
    Finding,
    Findings,
    Level,
    class_support,
    divided_groups,
    evaluation_images,
    labels_of_images,
    listed,
    repeated_images,
    rows_by_digest,
    training_images,
    two_labels,
    unreadable,
    vocabulary,
)
from grandrounds.data.leaks import (
    NOTHING_SHARED,
    Looked,
    Sharing,
    contradictions,
    look,
    near_copies,
    shared_between,
)
from grandrounds.data.site import UNKNOWN_LABEL, DatasetLocation, Part, SiteData, load_site_data
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.protocol.problem import Problem

Purpose = Literal["training", "evaluation"]
ALL_SITES = "all sites"
"""Where a finding is about several sites."""
SHIPPED_MINIMUM = 10
"""Patients behind a count that leaves, in the policy of startup kits."""
MIN_IMAGES_OF_DISTRIBUTION = 50
DIFFERENT_DISTRIBUTION = 0.2
"""Half the sum of the absolute differences of two sites' shares of the classes; 1 if they have no class in common."""


def examine_location(
    location: DatasetLocation,
    problem: Problem,
    cache_dir: Path,
    site: str,
    needs_labels: bool = False,
    purpose: Purpose = "training",
    more: Callable[[SiteData], list[Finding]] = lambda _: [],
) -> tuple[list[Finding], Looked | None]:
    """Load a data set in the problem's format and examine it; an error of loading is a failure among the findings.

    ``more`` finds what is not checked here, such as what a page shows.

    Returns:
        The findings, and what can be compared with other sites, if the data could be loaded.
    """
    try:
        data = load_site_data(location, problem, cache_dir)
    except (DataError, ConfigurationError) as error:
        return [Finding("failure", "data set", f"{site}: {error}")], None
    looked = look(data, site)
    findings = examine(data, site, needs_labels, purpose == "training", purpose == "evaluation", looked)
    return [*findings, *more(data)], looked


def compare_sites(
    sites: Mapping[str, Looked], sharing: Sharing = NOTHING_SHARED, overlap_allowed: bool = False
) -> list[Finding]:
    """What sites on one machine have in common beyond ``sharing``, and whether their class distributions differ.

    What is ``overlap_allowed`` is a warning.
    """
    if len(sites) < 2:
        return []
    shared: list[tuple[Level, str, str]] = [
        ("warning" if overlap_allowed and level == "failure" else level, check, message)
        for level, check, message in shared_between(sites, sharing)
    ]
    findings = [*contradictions(sites.values()), *shared, *_class_distributions(sites)]
    return [Finding(level, check, f"{ALL_SITES}: {message}") for level, check, message in findings]


def examine(
    data: SiteData,
    site: str,
    needs_labels: bool = False,
    trains: bool = True,
    tests: bool = False,
    looked: Looked | None = None,
) -> list[Finding]:
    """Run all checks on loaded data.

    Args:
        data: of the site.
        site: its name.
        needs_labels: whether an empty labelled set is a failure.
        trains: whether training images and their classes are examined.
        tests: whether the site only tests a finished model, for which labelled test images are all it must have.
        looked: what :func:`~grandrounds.data.leaks.look` has found, if it has looked already.
    """
    looked = looked or look(data, site)
    rows = rows_by_digest(data)
    checks = [
        unreadable(data),
        vocabulary(data),
        training_images(data, needs_labels) if trains else (),
        _test_images(data) if tests else evaluation_images(data),
        class_support(data, SUPPORT_PARTS) if trains else (),
        class_support(data, SUPPORT_PARTS[-1:]) if tests else (),
        _withheld_scores(data, SUPPORT_PARTS[-1:] if tests else SUPPORT_PARTS[1:]),
        divided_groups(data),
        two_labels(data, rows),
        repeated_images(data, rows),
        near_copies(looked.entries(), within=True),
        _empty_images(data, looked.flat),
        _original_shapes(data),
        *appearance(data),
    ]
    return [Finding(level, check, f"{site}: {message}") for part in checks for level, check, message in part]


def _test_images(data: SiteData) -> Findings:
    yield from labels_of_images(data, "test", "test", "failure")
    others = int((data.split != "test").sum())
    if others:
        yield "warning", "evaluation images", f"{others} images are not in split test; they are not evaluated"


def score_remedy(part: Part) -> str:
    """What to change so that scores of single classes of these images are known."""
    ways = [f"give more patients the split {part}", "join classes", "agree on a smaller minimum"]
    return f"{', '.join(ways[:-1])}, or {ways[-1]}"


def _withheld_scores(data: SiteData, parts: Sequence[tuple[Part, str]]) -> Findings:
    """Which scores will not leave, because a class has fewer patients than may be counted."""
    check = "released scores"
    minimum = data.min_support or SHIPPED_MINIMUM
    for part, word in parts:
        if (data.labels[data.rows(part)] >= len(data.classes)).any():
            continue
        patients = data.patients_by_class(part)
        few = [f"{name} {count}" for name, count in patients.items() if 0 < count < minimum]
        largest = max(patients, key=lambda name: patients[name])
        if few:
            message = (
                f"{word}: balanced accuracy and F1 are withheld where a policy asks for {minimum} patients behind a count "
                f"(patients by class: {', '.join(few)}; the largest class is {largest} with {patients[largest]}); "
                + score_remedy(part)
            )
            yield "warning" if data.min_support else "ok", check, message


def _empty_images(data: SiteData, empty: Sequence[int]) -> Findings:
    if empty:
        names = listed(data.names[row] for row in empty)
        message = f"{len(empty)} images have one colour only: {names}; look at them and take them out"
        yield "warning", "empty images", message
    else:
        yield "ok", "empty images", "no image is of one colour only"


def _original_shapes(data: SiteData) -> Findings:
    check = "original sizes"
    grey, colour = (sum(shape[-1] for shape in data.cache.shapes if shape[-2] == channels) for channels in (1, 3))
    if grey and colour:
        message = f"{grey} grey and {colour} colour images; check that both belong to this data set"
        yield "warning", check, message
    sizes = sorted({(height, width) for height, width, _, _ in data.cache.shapes}, key=lambda size: size[0] * size[1])
    if not sizes:
        yield "ok", check, "the sizes before resizing are not known"
        return
    span = " to ".join(f"{height}x{width}" for height, width in dict.fromkeys((sizes[0], sizes[-1])))
    yield "ok", check, f"{len(sizes)} original sizes, {span} (height x width)"


def _class_distributions(sites: Mapping[str, Looked]) -> Findings:
    """Whether the shares of the classes differ between sites, so that a site's statistics are not of its device alone."""
    labels = {
        site: looked.known[looked.known != UNKNOWN_LABEL] for site, looked in sites.items() if looked.known.ndim == 1
    }
    count = max((int(known.max(initial=-1)) for known in labels.values()), default=-1) + 1
    shares = {
        site: np.bincount(known, minlength=count) / len(known)
        for site, known in labels.items()
        if len(known) >= MIN_IMAGES_OF_DISTRIBUTION
    }
    apart = {(a, b): float(np.abs(shares[a] - shares[b]).sum()) / 2 for a, b in combinations(shares, 2)}
    if not apart or max(apart.values()) < DIFFERENT_DISTRIBUTION:
        return
    pair = max(apart, key=apart.__getitem__)
    message = (
        f"{' and '.join(pair)} have different class distributions ({apart[pair]:.0%} apart): do not set problem.norm=site; "
        "it helped where distributions were equal and devices synthetic, and cost AUC on real devices"
    )
    yield "ok", "class distributions", message
