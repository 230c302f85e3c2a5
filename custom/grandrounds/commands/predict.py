"""``grandrounds predict``: what a finished run's model says of images without labels."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grandrounds.commands.options import Json
from grandrounds.console.output import notes, results, say, say_json

PREDICT_HELP = """Predict images with a finished run's selected model.

RUN is a run's workspace. IMAGES are files, or one folder or archive, prepared like those of the run: name with --sites-dir
the partition that it trained on, if its images were prepared in a way of their own (windows, bit depth).

Predictions name images of patients: --out stays at the place. For scores on labelled images there is grandrounds evaluate.

[bold]Examples[/bold]

\b
  grandrounds predict runs/ham IMAGES --out predicted.csv
  grandrounds predict runs/ham a.jpg b.dcm --json
"""


def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's workspace.")],
    images: Annotated[list[Path], typer.Argument(metavar="IMAGES", help="Images, or a folder or archive of images.")],
    sites_dir: Annotated[Path | None, typer.Option(help="Folder of the partition that the run trained on.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the table to this CSV file; else it is printed.")] = None,
    json: Json = False,
) -> None:
    """Show a line for each image: what is predicted, and the probabilities."""
    from grandrounds.api.running import Run
    from grandrounds.api.sites import Sites
    from grandrounds.csv_files import csv_bytes, write_csv

    found = Run(run, Sites.read(sites_dir) if sites_dir else None).predict(images)
    classes = list(found.columns[1:])
    header = ["image", "predicted", *(f"probability_{name}" for name in classes)]
    rows = [[image, *cells] for image, *cells in found.itertuples()]
    lines = [[image, predicted, *(f"{value:.6f}" for value in values)] for image, predicted, *values in rows]
    if out is not None:
        write_csv(out, header, lines)
        say(notes(), f"{len(lines)} images: {out}")
    if json:
        say_json([dict(zip(header, row, strict=True)) for row in rows])
    elif out is None:
        say(results(), csv_bytes(header, lines).decode().rstrip("\n"))
