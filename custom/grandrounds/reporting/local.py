"""Pages about a site's own images, which stay at the site: what its network sees, what looks wrong, what to label."""

from __future__ import annotations

import base64
import csv
import io
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from grandrounds import __version__
from grandrounds.csv_files import csv_bytes, csv_cells
from grandrounds.data.doctor import DONE
from grandrounds.data.fitness import Finding
from grandrounds.data.images.files.picture import count_rules
from grandrounds.data.images.preparation import Preparation
from grandrounds.data.images.readers import open_images
from grandrounds.data.images.sizing import SIZINGS
from grandrounds.data.manifest import SPLITS, read_manifest
from grandrounds.data.partition.files import read_partition
from grandrounds.data.site import DatasetLocation, SiteData, locate_dataset
from grandrounds.data.suspicions import SUSPICIONS, SmallCopies, small_copies, suspicions
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.files import write_bytes
from grandrounds.protocol.names import LABEL_NEXT
from grandrounds.protocol.tasks import task_of
from grandrounds.reporting.run import ReadRun
from grandrounds.reporting.tables import class_titles, page_template
from grandrounds.seeding import numpy_generator

LOOKED_AT = 2000
"""Images that suspicions are looked for in: they and what is computed from them stay below 100 MB."""
PER_CLASS = 12
PER_SUSPICION = 8
AS_STORED = "shown as stored"
WITHOUT_LABEL = "without a label"
EXAMPLE_QUALITY = 60
"""Of a picture as JPEG, where a page has many."""


class Tile(NamedTuple):
    """An image of the page: the picture as a ``data:`` address, its name, and why it is there."""

    source: str
    name: str
    note: str = ""


class Shown(NamedTuple):
    """Some images of a kind: what they have in common, how many there are, and those that are shown."""

    title: str
    images: int
    tiles: Sequence[Tile]
    meaning: str = ""


class ClassSample(NamedTuple):
    """Images of a class, by the rules of decoding that were applied."""

    name: str
    images: int
    by_rule: Sequence[Shown]


def readable_rows(data: SiteData) -> NDArray[np.int64]:
    """The rows of the images that can be read, ascending."""
    return np.setdiff1d(np.arange(len(data.names)), data.cache.unreadable).astype(np.int64)


def class_samples(data: SiteData, site: str) -> list[ClassSample]:
    """About ``PER_CLASS`` images of each class, drawn at random from every rule in turn; without a label as well."""
    rows = _rows_by_class(data)
    return [ClassSample(name, len(rows[name]), _by_rule(data, rows[name], site, name)) for name in rows]


def suspicious(data: SiteData, site: str) -> tuple[list[Shown], int]:
    """The suspicions about at most ``LOOKED_AT`` images drawn at random, and how many were looked at."""
    rows = readable_rows(data)
    if len(rows) > LOOKED_AT:
        rows = np.sort(numpy_generator("local page", site).choice(rows, LOOKED_AT, replace=False))
    copies = SmallCopies(
        small_copies(data.images, rows),
        [data.names[row] for row in rows],
        [data.cache.originals[row] for row in rows] if data.cache.originals else (),
        [data.sources[row] for row in rows] if data.sources else (),
    )
    kinds = []
    for kind, suspects in suspicions(copies).items():
        tiles = [_tile(data, rows[row], reason) for row, reason in suspects[:PER_SUSPICION]]
        kinds.append(Shown(kind, len(suspects), tiles, SUSPICIONS[kind][0]))
    return kinds, len(rows)


def tile_of(pixels: NDArray[np.uint8], name: str, note: str = "", kind: Literal["PNG", "JPEG"] = "PNG") -> Tile:
    """An image, shape ``(height, width, channels)``, as a tile of a page."""
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(stream, kind, quality=EXAMPLE_QUALITY)
    return Tile(f"data:image/{kind.lower()};base64,{base64.b64encode(stream.getvalue()).decode()}", name, note)


def described_rules(rules: Iterable[str]) -> str:
    """What was done to an image."""
    return ", ".join(DONE[rule] for rule in rules) or AS_STORED


def _rows_by_class(data: SiteData) -> Mapping[str, list[int]]:
    """Rows of each class or finding, then those with none and those without a label, as far as there are some."""
    rows: dict[str, list[int]] = {name: [] for name in data.classes}
    rest: dict[str, list[int]] = defaultdict(list)
    known = data.known
    for row in readable_rows(data):
        shown = np.flatnonzero(data.task.class_counts(data.labels[[row]], len(data.classes))) if known[row] else ()
        for number in shown:
            rows[data.classes[number]].append(row)
        if not len(shown):
            rest[f"no {data.task.noun}" if known[row] else WITHOUT_LABEL].append(row)
    return rows | rest


def _by_rule(data: SiteData, rows: Sequence[int], site: str, name: str) -> list[Shown]:
    rules = data.cache.rules or ((),) * len(data.names)
    total, drawn = Counter(rules[row] for row in rows), Counter[tuple[str, ...]]()
    turns = []
    for row in numpy_generator("local page", site, name).permutation(np.array(rows, np.int64)):
        turns.append((drawn[rules[row]], int(row)))
        drawn[rules[row]] += 1
    chosen = sorted(row for _, row in sorted(turns)[:PER_CLASS])
    shown = defaultdict(list)
    for row in chosen:
        shown[rules[row]].append(_tile(data, row))
    return [Shown(described_rules(done), total[done], tiles) for done, tiles in sorted(shown.items())]


def _tile(data: SiteData, row: int, note: str = "") -> Tile:
    return tile_of(data.images[row], data.names[row], note)


EXAMPLE_PIXELS = 128


PER_CELL = 6
MOST_EXAMPLES = 80
"""Images behind numbers of the confusion matrix: those of errors come first, and each is about 4 kB of the page."""
MOST_NAMES = 60


class Confused(NamedTuple):
    """The ``images`` of a class that the model called a class: some are shown, the names of ``more`` are listed."""

    true: str
    predicted: str
    images: int
    tiles: Sequence[Tile]
    more: Sequence[str]

    @classmethod
    def of(
        cls, true: str, predicted: str, images: Sequence[tuple[float, str, str]], tiles: Mapping[tuple[str, str], Tile]
    ) -> Confused:
        """Of images, each with its site and name, and the tiles that there are."""
        shown = [tiles[site, name] for _, site, name in images if (site, name) in tiles]
        more = [name for _, site, name in images if (site, name) not in tiles]
        return cls(true, predicted, len(images), shown, more[:MOST_NAMES])


class Examples(NamedTuple):
    """Images of a run for its page: of each class, and of each cell of the confusion matrix (rows: true classes)."""

    classes: Sequence[Tile]
    confusion: Sequence[Sequence[Confused]]


def examples_of(run: ReadRun, sites_dir: Path) -> Examples:
    """A training image of each class, and test images with their names.

    Raises:
        ConfigurationError: if the run was not simulated on this machine: its images are other hospitals'.
        DataError: if a site's manifest or its images cannot be read at all.
    """
    if not run.origin.provenance.get("simulated") or "dataset" not in run.log.problem:
        raise ConfigurationError(
            f"--examples: {run.name} was not simulated on this machine, and no report shows images of other places"
        )
    return Examples(_class_examples(run, sites_dir), _confused(run, sites_dir))


@contextmanager
def _squares(run: ReadRun, site: str, sites_dir: Path) -> Iterator[tuple[Path, Callable[[str], NDArray[np.uint8]]]]:
    """The manifest of a site, and what gives the pixels of an image by its name."""
    location = locate_dataset(site, str(run.log.problem["dataset"]), [sites_dir])
    preparation = Preparation(EXAMPLE_PIXELS, int(run.log.problem.get("channels", 3)), location.reading)
    with open_images(location.root, location.reading) as reader:
        yield location.manifest, lambda name: preparation.square(reader.encoded(name)).pixels


def _class_examples(run: ReadRun, sites_dir: Path) -> list[Tile]:
    """The first readable training image of each class whose label training may use, without its name."""
    tiles: dict[str, Tile] = {}
    titles = class_titles(run.classes)
    for site in run.log.sites:
        with _squares(run, site, sites_dir) as (manifest, pixels_of):
            for record in read_manifest(manifest, task=run.task):
                shown = run.task.names_in(record.label) if record.labelled and record.split == "train" else ()
                for name in (name for name in shown if name in titles and name not in tiles):
                    with suppress(DataError):
                        tiles[name] = tile_of(pixels_of(record.image), titles[name])
    return [tiles[name] for name in run.classes if name in tiles]


def _confused(run: ReadRun, sites_dir: Path) -> list[list[Confused]]:
    """The test images by true and predicted class, the surest first; nothing without predictions of one class each."""
    if not run.tests.predictions:
        return []
    cells: dict[tuple[int, int], list[tuple[float, str, str]]] = defaultdict(list)
    for site, cases in run.tests.predictions.items():
        rows, risks = np.arange(len(cases.labels)), cases.probabilities
        sure = np.zeros(len(rows)) if risks is None else risks[rows, cases.predicted]
        answers = zip(cases.labels, cases.predicted, sure, run.tests.names[site], strict=True)
        for true, predicted, share, name in answers:
            cells[int(true), int(predicted)].append((-float(share), site, name))
    images = {cell: sorted(cells[cell]) for cell in np.ndindex(len(run.classes), len(run.classes))}
    ranked = [
        (true == predicted, rank, image)
        for (true, predicted), of_cell in images.items()
        for rank, image in enumerate(of_cell[:PER_CELL])
    ]
    tiles: dict[tuple[str, str], Tile] = {}
    shown = [image for _, _, image in sorted(ranked)[:MOST_EXAMPLES]]
    for site in run.tests.predictions:
        with _squares(run, site, sites_dir) as (_, pixels_of):
            for share, _, name in (image for image in shown if image[1] == site):
                with suppress(DataError):
                    tiles[site, name] = tile_of(pixels_of(name), name, f"{site}, probability {-share:.2f}", "JPEG")
    titles = list(enumerate(class_titles(run.classes).values()))
    return [
        [Confused.of(true, called, images[row, column], tiles) for column, called in titles] for row, true in titles
    ]


def write_import_page(folder: Path, description: Mapping[str, Any], lines: Sequence[str], command: str) -> Path:
    """Write the page about a new partition of images of one's own, for their owner alone.

    Args:
        folder: of the partition; the page is beside it, with the suffix ``.html``.
        description: content of its ``partition.json``.
        lines: the account of the import, and remarks.
        command: what to type next.

    Returns:
        The page.

    Raises:
        DataError: if another command has replaced the partition meanwhile.
    """
    rows, records = [], []
    for site in description["sites"]:
        location = locate_dataset(site, description["dataset_name"], [folder])
        own = read_manifest(location.manifest, task=task_of(description))
        records += [(site, location, record) for record in own]
        splits = Counter(record.split for record in own)
        rows.append((site, *(splits[split] for split in SPLITS), len({record.patient for record in own} - {""})))
    drawn = numpy_generator("import page", folder.name).permutation(len(records))[:PER_CLASS]
    examples = []
    for site, location, record in (records[number] for number in sorted(drawn)):
        with suppress(DataError), open_images(location.root, location.reading) as reader:
            square = Preparation(EXAMPLE_PIXELS, 3, location.reading).square(reader.encoded(record.image))
            examples.append((tile_of(square.pixels, record.image), site, record))
    page = page_template("import.html").render(
        name=folder, lines=lines, command=command, sites=rows, splits=SPLITS, examples=examples, version=__version__
    )
    if read_partition(folder) != description:
        raise DataError(
            f"{folder}: another command has replaced the partition, which has no page now; import once more"
        )
    path = folder.with_name(f"{folder.name}.html")
    write_bytes(path, page.encode(), private=True)
    return path


def write_local_page(data: SiteData, site: str, path: Path, sizing: str = "exact", preprocess: str = "none") -> Finding:
    """Write the page about a site's images, for its owner alone.

    Args:
        data: of the site.
        site: its name.
        path: of the page, which is replaced.
        sizing: the problem's preprocessing that ``data`` were read with.
        preprocess: what else the site's entry of ``grandrounds.json`` has done to them.

    Returns:
        One line that counts rules and suspicions; a warning if there are suspicions.
    """
    suspicions, looked_at = suspicious(data, site)
    rules = count_rules(data.cache.rules)
    page = page_template("local.html").render(
        site=site,
        images=len(data.names),
        unreadable=len(data.cache.quarantined),
        looked_at=looked_at,
        shape=data.images.shape[1:],
        how=SIZINGS[sizing].meaning if preprocess == "none" else f'"preprocess": "{preprocess}"',
        rules=[(rule, meaning, rules[rule]) for rule, meaning in DONE.items() if rules[rule]],
        suspicions=suspicions,
        classes=class_samples(data, site),
        version=__version__,
    )
    write_bytes(path, page.encode(), private=True)
    counted = [*sorted(rules.items()), *((shown.title, shown.images) for shown in suspicions if shown.images)]
    return _told(site, path, looked_at, counted, suspicions)


def _told(
    site: str, path: Path, looked_at: int, counted: Sequence[tuple[str, int]], suspicions: Sequence[Shown]
) -> Finding:
    doubtful = any(shown.images for shown in suspicions)
    listed = "; ".join(f"{name}: {count} images" for name, count in counted) or "no rule of decoding applied"
    nothing = "" if doubtful else "; nothing suspicious"
    message = f"{site}: {listed}{nothing} ({looked_at} images looked at, see {path})"
    return Finding("warning" if doubtful else "ok", "page", message)


LABEL_PIXELS = 320


def write_label_page(
    folder: Path, site: str, location: DatasetLocation, classes: Sequence[str]
) -> tuple[Path, int, list[str]]:
    """Write the page on which a site labels the images of its list, for its owner alone.

    The page saves a table of these images and their labels, which an import joins with the site's manifest.

    Args:
        folder: of the site in the run, with the list; the page is beside it.
        site: its name.
        location: of the images.
        classes: to choose from.

    Returns:
        The page, the number of its images, and why the others of the list cannot be shown.

    Raises:
        DataError: if an image of the list is not in the manifest any more, or none can be read.
    """
    with (folder / f"{LABEL_NEXT}.csv").open(encoding="utf-8", newline="") as stream:
        _, *names = (csv_cells(line)[0] for line in csv.reader(stream))
    known = {record.image for record in read_manifest(location.manifest, choices=location.keys)}
    if gone := [name for name in names if name not in known]:
        raise DataError(f"{location.manifest} lacks {gone[0]}, which is to be labelled: run the job again")
    preparation = Preparation(LABEL_PIXELS, 3, location.reading)
    tiles, unreadable = [], []
    with open_images(location.root, location.reading) as reader:
        for name in names:
            try:
                tiles.append(tile_of(preparation.square(reader.encoded(name)).pixels, name, kind="JPEG"))
            except DataError as error:
                unreadable.append(str(error))
    if not tiles:
        raise DataError(f"{site}: no image of the list can be read: {unreadable[0]}")
    script = page_template("label.js").render()
    page = page_template("label.html").render(
        site=site,
        tiles=tiles,
        unreadable=unreadable,
        classes=classes,
        content={"images": _csv_texts([tile.name for tile in tiles]), "labels": _csv_texts(classes)},
        script=script,
        script_digest=base64.b64encode(sha256(script.encode()).digest()).decode(),
        version=__version__,
    )
    path = folder / f"{LABEL_NEXT}.html"
    write_bytes(path, page.encode(), private=True)
    return path, len(tiles), unreadable


def _csv_texts(texts: Sequence[str]) -> list[str]:
    """Texts as the cells of a table have them."""
    return next(csv.reader(io.StringIO(csv_bytes(texts, []).decode(), newline="")))
