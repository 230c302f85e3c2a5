"""``grandrounds import``: a hospital's folder, archive or table becomes the sites of a simulation, with an account."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import Field, fields
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import typer

from grandrounds.commands.data.partition import Overwrite, parse_windows, scheme_defaults, show_partition, values_of
from grandrounds.commands.options import Json, comma_separated
from grandrounds.data.datasets.own_options import FolderOptions, ManifestOptions
from grandrounds.data.options import MutualOptions, PartitionOptions
from grandrounds.option_annotations import Annotation, annotations_of

IMPORT_HELP = """Read images of your own, account for every file or row, and divide them between sites.

SOURCE is a folder (CLASS/*, SITE/CLASS/* or CLASS/PATIENT/*), a .zip of it, or a table with the columns image and label and,
optionally, patient, site, split, lesion, source and labelled: CSV with any separator, .xlsx or Parquet. What a file is, is
seen from its bytes. No image is copied. All labels are used, and of the images of a site 70 % are for training, 10 % for
validation and 20 % for testing, unless the table or the folders say otherwise.

[bold]Examples[/bold]

\b
  grandrounds import FOLDER --out runs/own/sites
  grandrounds import FOLDER --scheme dirichlet --set alpha=0.5 --out runs/own/mixed
  grandrounds import sheet.xlsx --columns image=Bild,label=Diagnose,patient=Fall --root IMAGES --out runs/own/sites
  grandrounds simulate fedavg --sites-dir runs/own/sites
"""


def import_(
    source: Path,
    root: Path | None,
    out: Path,
    assignments: list[str] | None,
    overwrite: bool,
    json: bool,
    **options: Any,
) -> None:
    """Make a partition of the source and show what became of it."""
    from grandrounds.api.sites import Sites

    options |= values_of(BY_SET, assignments or ())
    sites = Sites.from_source(source, root, out, overwrite=overwrite, warn=False, **options)
    show_partition(sites, out, json)


OF_ONE_SOURCE = ("layout", "patient_tag", "columns", "sheet")
"""Options of a folder or of a table alone."""
DIVISION = ("scheme", "sites", "labelled", "seed")
"""Options of every data set that have a flag; the others are set by ``--set``."""
BY_SET: Mapping[str, Annotation] = {
    name: known for name, known in annotations_of(MutualOptions).items() if name not in DIVISION
}


def _parameters() -> list[inspect.Parameter]:
    """The command's own parameters, and the options of folders and tables; None where an option is not given."""
    place = "Folder of the sites; it must contain nothing else."
    images = "Of a table: folder or .zip of the images; default: the table's folder."
    further = typer.Option("--set", metavar="KEY=VALUE", help=f"Set {', '.join(BY_SET)}; repeatable.")
    own = {
        field.name: _option(group, field)
        for group in (FolderOptions, ManifestOptions)
        for field in fields(group)
        if field.name not in {"manifest", *BY_SET}
    }
    of_kind = [own.pop(name).replace(default=None) for name in OF_ONE_SOURCE]
    return [
        _parameter("source", Annotated[Path, typer.Argument(help="Folder, .zip or table.")]),
        _parameter("out", Annotated[Path, typer.Option(help=place)]),
        _parameter("root", Annotated[Path | None, typer.Option(help=images)], None),
        *own.values(),
        *of_kind,
        _parameter("assignments", Annotated[list[str] | None, further], None),
        _parameter("overwrite", Overwrite, False),
        _parameter("json", Json, False),
    ]


def _parameter(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    """A parameter of a typer command; without a default it is required."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _option(group: type[PartitionOptions], field: Field[Any]) -> inspect.Parameter:
    """The parameter of an option, from what its group states about it."""
    known = annotations_of(group)[field.name]
    kind = next(iter(set(get_args(known.type)) - {type(None)})) if type(None) in get_args(known.type) else known.type
    panel = "Division between sites" if field.name in DIVISION else "Reading the images"
    extras: dict[str, Any] = {"rich_help_panel": panel, "help": f"{known.meaning[0].upper()}{known.meaning[1:]}."}
    declarations = [f"--{field.name.replace('_', '-')}"] if kind is bool else []
    if get_origin(kind) is tuple:
        names = kind == tuple[str, ...]
        extras |= {"parser": comma_separated if names else parse_windows}
        extras |= {"metavar": "A,B,..." if names else "CENTRE:WIDTH,..."}
        kind = str
    elif known.bounds is not None:
        extras |= {"min": _finite(known.bounds.minimum), "max": _finite(known.bounds.maximum)}
    if field.default is None or field.default is False or field.default == ():
        extras["show_default"] = scheme_defaults(field.name, group) or False
        return _parameter(field.name, Annotated[kind | None, typer.Option(*declarations, **extras)], None)
    return _parameter(field.name, Annotated[kind, typer.Option(*declarations, **extras)], field.default)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


vars(import_)["__signature__"] = inspect.Signature(_parameters())
