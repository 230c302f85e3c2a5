"""``grandrounds import``: a hospital's folder, archive or table becomes the sites of a simulation, with an account."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated, Any

import typer

from grandrounds.commands.data.partition import option_parameters, show_partition
from grandrounds.commands.options import Json
from grandrounds.data.datasets.own_options import FolderOptions, ManifestOptions

IMPORT_HELP = """Read images of your own, account for every file or row, and divide them between sites.

SOURCE is a folder (CLASS/*, SITE/CLASS/* or CLASS/PATIENT/*), a .zip of it, or a table with the columns image and label and,
optionally, patient, site, split, lesion, source and labelled: CSV with any separator, .xlsx or Parquet. What a file is, is
seen from its bytes. No image is copied. All labels are used, and of the images of a site 70 % are for training, 10 % for
validation and 20 % for testing, unless the table or the folders say otherwise.

[bold]Examples[/bold]

\b
  grandrounds import FOLDER --out runs/own/sites
  grandrounds import sheet.xlsx --columns image=Bild,label=Diagnose,patient=Fall --root IMAGES --out runs/own/sites
  grandrounds simulate fedavg --sites-dir runs/own/sites
"""


def import_(source: Path, root: Path | None, out: Path, overwrite: bool, json: bool, **options: Any) -> None:
    """Make a partition of the source and show what became of it."""
    from grandrounds.api.sites import Sites

    sites = Sites.from_source(source, root, out, overwrite=overwrite, warn=False, **options)
    show_partition(sites, out, json)


def _parameters() -> list[inspect.Parameter]:
    """The command's own parameters, and the options of folders and tables; None where an option is not given."""

    def parameter(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)

    place = "Folder of the sites; it must contain nothing else."
    images = "Of a table: folder or .zip of the images; default: the table's folder."
    replace = typer.Option("--overwrite", help="Replace another partition.")
    own = {one.name: one for group in (FolderOptions, ManifestOptions) for one in option_parameters(group)}
    del own["manifest"]
    return [
        parameter("source", Annotated[Path, typer.Argument(help="Folder, .zip or table.")]),
        parameter("out", Annotated[Path, typer.Option(help=place)]),
        parameter("root", Annotated[Path | None, typer.Option(help=images)], None),
        *(own[name] for name in own if name not in ("layout", "patient_tag", "columns", "sheet")),
        *(
            one.replace(default=None)
            for name, one in own.items()
            if name in ("layout", "patient_tag", "columns", "sheet")
        ),
        parameter("overwrite", Annotated[bool, replace], False),
        parameter("json", Json, False),
    ]


vars(import_)["__signature__"] = inspect.Signature(_parameters())
