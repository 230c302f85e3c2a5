"""Is this site's data fit for training, or for testing a finished model? Checked before the first round and on demand.

A failure would make results wrong (the same patient on both sides of a split) or training impossible (nothing labelled);
a warning is something a person should have seen. Each finding includes its remedy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

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
from grandrounds.data.images.files.picture import count_rules
from grandrounds.data.leaks import NOTHING_SHARED, Looked, Sharing, contradictions, look, near_copies, shared_between
from grandrounds.data.shortcuts import apart, telling_kinds
from grandrounds.data.site import UNKNOWN_LABEL, DatasetLocation, Part, SiteData, load_site_data
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.protocol.problem import Problem

DARK = 32
"""An image whose brightest level is below this, an eighth of the range, is dark."""
SHOWN_DARK = 3
AT_ONCE = 256
DONE = {
    "orientation": "turned (EXIF)",
    "polarity": "inverted (white is stored as low)",
    "palette": "coloured by a palette",
    "depth": "scaled from more or fewer bits to 8",
    "modality LUT": "with a modality look-up table",
    "VOI LUT": "shown by a VOI look-up table",
    "window": "shown under a window",
    "stretch": "stretched between percentiles",
    "padding": "stretched without padding",
    "profile": "turned from their colour profile to sRGB",
    "ground": "laid on black where they are transparent",
}


def appearance(data: SiteData) -> Iterator[Findings]:
    """The doctor's checks of the pixels."""
    yield _applied_rules(data)
    yield _dark_images(data)


def _applied_rules(data: SiteData) -> Findings:
    counts = count_rules(data.cache.rules)
    if counts:
        listed = ", ".join(f"{count} {DONE[rule]}" for rule, count in sorted(counts.items()))
        yield "ok", "decoding", f"of {len(data.names)} images: {listed}"
    elif data.cache.rules:
        yield "ok", "decoding", "all images are shown as they are stored"


def _dark_images(data: SiteData) -> Findings:
    dark = _is_dark(data.images)
    dark[data.cache.unreadable] = False
    names = [data.names[row] for row in np.flatnonzero(dark)]
    if names:
        more = f" and {len(names) - SHOWN_DARK} more" if len(names) > SHOWN_DARK else ""
        remedy = (
            "if their files hold 10, 12 or 14 bits in 16, state it in the data set's entry of grandrounds.json "
            '("bits": 12) or make the partition with --bits 12'
        )
        shown = ", ".join(names[:SHOWN_DARK])
        message = (
            f"{len(names)} images use less than an eighth of their range and are almost black: {shown}{more}; {remedy}"
        )
        yield "warning", "dark images", message
    else:
        yield "ok", "dark images", "no image is almost black"


def _is_dark(images: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Whether an image, shape ``(n, height, width, channels)``, has no bright level and more than one colour."""
    # A part at a time: the images may be a large map.
    parts = [images[start : start + AT_ONCE] for start in range(0, len(images), AT_ONCE)]
    dark = [part.reshape(len(part), -1).max(axis=1) < DARK for part in parts]
    is_dark = np.concatenate(dark) if dark else np.zeros(0, np.bool_)
    for row in np.flatnonzero(is_dark):
        colours = images[row].reshape(-1, images.shape[-1])
        is_dark[row] = (colours != colours[0]).any()
    return is_dark


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
    looked = look(data, site, str(location.reading.windows))
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
    findings = [*contradictions(sites.values()), *shared, *_class_distributions(sites), *_origins(sites)]
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
        _shortcuts(looked.labels, looked.kinds),
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


def _shortcuts(labels: Sequence[str], kinds: Mapping[str, Sequence[str]]) -> Findings:
    for message in telling_kinds(labels, kinds):
        yield "warning", "origin of classes", message


def _origins(sites: Mapping[str, Looked]) -> Findings:
    """Whether a site, or how images were made, tells the class, and whether sites' images are made or read differently."""
    labels = [label for looked in sites.values() for label in looked.labels]
    shared = set.intersection(*(set(looked.kinds) for looked in sites.values()))
    kinds = {kind: [value for looked in sites.values() for value in looked.kinds[kind]] for kind in sorted(shared)}
    named = [site for site, looked in sites.items() for _ in looked.labels]
    yield from list(_shortcuts(labels, {"site": named})) or _shortcuts(labels, kinds)
    channels = {site: looked.kinds["channels"] for site, looked in sites.items() if "channels" in looked.kinds}
    if different := apart(channels):
        one, its, other, others = different
        message = f"{one} has {its} images, {other} {others} images: a model sees which site an image is of"
        yield "warning", "origin of images", message
    readings = {looked.reading: site for site, looked in sites.items()}
    if len(readings) > 1:
        (reading, site), (another, other) = list(readings.items())[:2]
        message = (
            f"{site} and {other} show images in different windows ({reading}; {another}), which their entries of "
            "grandrounds.json say; agree on the same windows"
        )
        yield "failure", "windows", message


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
