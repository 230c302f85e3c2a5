"""``grandrounds import``: a hospital's folder, archive or table becomes the sites of a simulation, with an account."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated, Any

import typer

from grandrounds.commands.data.partition import LAST_PARAMETERS, command_parameter, option_parameters, show_partition
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


OF_ONE_SOURCE = ("layout", "patient_tag", "columns", "sheet")
"""Options of a folder or of a table alone."""


def _parameters() -> list[inspect.Parameter]:
    """The command's own parameters, and the options of folders and tables; None where an option is not given."""
    place = "Folder of the sites; it must contain nothing else."
    images = "Of a table: folder or .zip of the images; default: the table's folder."
    own = {one.name: one for group in (FolderOptions, ManifestOptions) for one in option_parameters(group)}
    of_kind = [own.pop(name).replace(default=None) for name in OF_ONE_SOURCE]
    del own["manifest"]
    return [
        command_parameter("source", Annotated[Path, typer.Argument(help="Folder, .zip or table.")]),
        command_parameter("out", Annotated[Path, typer.Option(help=place)]),
        command_parameter("root", Annotated[Path | None, typer.Option(help=images)], None),
        *own.values(),
        *of_kind,
        *LAST_PARAMETERS,
    ]


vars(import_)["__signature__"] = inspect.Signature(_parameters())
