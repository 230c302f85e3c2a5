"""``grandrounds label``: the images that a site is to label next."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grandrounds.console.output import notes, results, say
from grandrounds.errors import ConfigurationError
from grandrounds.protocol.names import LABEL_NEXT


def label() -> None:
    """Label the images of a site that are worth most to all sites together."""


def next_(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A simulation's workspace, or grandrounds/RUN_NAME in a site's kit.")
    ],
    site: Annotated[str | None, typer.Option(help="Only this site. Default: all whose lists are in RUN.")] = None,
    sites_dir: Annotated[
        Path | None, typer.Option(help="Folder of the partition. Default: the workspace's own, or the kit's data set.")
    ] = None,
) -> None:
    """Write a page with the images that a site is to label next, a choice of classes for each, and a button to save.

    A run of ridge with controller.label_budget=N chooses the N images of all sites together: a finished run goes on with
    the same command and this option. Each site keeps its own list; no name and no image leaves it. The page is beside the
    list, loads nothing and sends nothing. It saves a table of these images and their labels, which grandrounds import
    --metadata joins with the site's manifest.

    Examples:
      grandrounds simulate ridge --sites-dir runs/ham/sites --workspace runs/ridge --set controller.label_budget=80
      grandrounds label next runs/ridge --sites-dir runs/ham/sites --site site-1
      grandrounds label next KIT/grandrounds/ridge
      grandrounds import MANIFEST --metadata labelled.csv --root IMAGES --sites 1 --out DIR
    """
    from grandrounds.data.location import locate
    from grandrounds.federation.site.store import MARKER
    from grandrounds.files import read_json_object
    from grandrounds.protocol.paths import CACHE
    from grandrounds.reporting.local import write_label_page

    lists = label_lists(run)
    if not lists or (site is not None and site not in lists):
        raise ConfigurationError(
            f"{run} has no list of images to label of {site or 'any site'} (there are: {', '.join(lists) or 'none'}); run "
            "ridge with controller.label_budget=N, also where it has finished without"
        )
    for name in lists if site is None else [site]:
        folder, root = lists[name].parent, lists[name].parents[3]
        problem = read_json_object(folder / MARKER)["configuration"]["problem"]
        folders = [sites_dir] if sites_dir else [root / "sites", root / "local"]
        try:
            location = locate(problem["dataset"], name, folders, folder.parents[1] / CACHE)
        except ConfigurationError as error:
            if sites_dir is None:
                raise ConfigurationError(f"{error}; name the folder of the partition, --sites-dir") from None
            raise
        page, images, unreadable = write_label_page(folder, name, location, problem["classes"])
        for reason in unreadable:
            say(notes(), f"warning: {name}: {reason}; it is left out")
        say(results(), f"{name}: {images} images to label in {page}")


def label_lists(run: Path) -> dict[str, Path]:
    """The lists of images to label in a run, by site."""
    found = [*run.glob(f"*/{LABEL_NEXT}.csv"), *run.glob(f"state/*/*/{LABEL_NEXT}.csv")]
    return {path.parent.name: path.absolute() for path in sorted(found)}
