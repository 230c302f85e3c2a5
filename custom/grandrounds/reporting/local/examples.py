"""A training image of each class, for the report of a simulation on the images of this machine."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from grandrounds.data.images.preparation import Preparation
from grandrounds.data.images.readers import open_images
from grandrounds.data.manifest import read_manifest
from grandrounds.data.site import locate_dataset
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.reporting.local.samples import Tile, tile_of
from grandrounds.reporting.run import ReadRun
from grandrounds.reporting.tables import class_titles

EXAMPLE_PIXELS = 128


def class_examples(run: ReadRun, sites_dir: Path) -> list[Tile]:
    """The first readable training image of each class whose label training may use, without its name.

    Raises:
        ConfigurationError: if the run was not simulated on this machine: its images are other hospitals'.
        DataError: if a site's manifest or its images cannot be read at all.
    """
    if not run.origin.provenance.get("simulated") or "dataset" not in run.log.problem:
        raise ConfigurationError(
            f"--examples: {run.name} was not simulated on this machine, and no report shows images of other places"
        )
    tiles: dict[str, Tile] = {}
    titles = class_titles(run.classes)
    for site in run.log.sites:
        location = locate_dataset(site, str(run.log.problem["dataset"]), [sites_dir])
        preparation = Preparation(EXAMPLE_PIXELS, int(run.log.problem.get("channels", 3)), location.reading)
        with open_images(location.root, location.reading) as reader:
            for record in read_manifest(location.manifest, task=run.task):
                shown = run.task.names_in(record.label) if record.labelled and record.split == "train" else ()
                for name in (name for name in shown if name in titles and name not in tiles):
                    with suppress(DataError):
                        square = preparation.square(reader.encoded(record.image))
                        tiles[name] = tile_of(square.pixels, titles[name])
    return [tiles[name] for name in run.classes if name in tiles]
