"""``grandrounds predict``: what a finished run's model says of images without labels."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grandrounds.commands.options import Json, Members, OwnModels
from grandrounds.console.output import notes, results, say, say_json

LABELLED_NEXT = 30

PREDICT_HELP = """Predict images with a finished run's selected model.

RUN is a run's workspace. IMAGES are files, or one folder or archive, prepared like those of the run: name with --sites-dir
the partition that it trained on, if its images were prepared in a way of their own (windows, bit depth).

Predictions name images of patients: --out and --label-next stay at the place. --label-next lists the images that are most
worth a label, for grandrounds evaluate --recalibrate: predicted classes in turn, of each the least certain image first. For
scores on labelled images there is grandrounds evaluate, where --ensemble and --member are explained, too.

[bold]Examples[/bold]

\b
  grandrounds predict runs/ham IMAGES --out predicted.csv
  grandrounds predict runs/ham IMAGES --label-next next.csv
  grandrounds predict runs/ham a.jpg b.dcm --json
  grandrounds predict runs/local IMAGES --ensemble
"""


def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's workspace.")],
    images: Annotated[list[Path], typer.Argument(metavar="IMAGES", help="Images, or a folder or archive of images.")],
    sites_dir: Annotated[Path | None, typer.Option(help="Folder of the partition that the run trained on.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the table to this CSV file; else it is printed.")] = None,
    label_next: Annotated[
        Path | None,
        typer.Option(help=f"Write the {LABELLED_NEXT} images that are most worth a label to this CSV file."),
    ] = None,
    ensemble: OwnModels = False,
    members: Members = None,
    json: Json = False,
) -> None:
    """Show a line for each image: what is predicted, and the probabilities."""
    from grandrounds.api.running import Run
    from grandrounds.api.sites import Sites
    from grandrounds.csv_files import csv_bytes, write_csv
    from grandrounds.evaluation.external import label_order
    from grandrounds.protocol.tasks import task_of

    finished = Run(run, Sites.read(sites_dir) if sites_dir else None)
    if label_next is not None:
        task_of(finished.summary["configuration"]["problem"]).require_exclusive("--label-next")
    predictions = finished.predict(images, ensemble=members or ensemble)
    classes = list(predictions.columns[1:])
    header = ["image", "predicted", *(f"probability_{name}" for name in classes)]
    rows = [[image, *cells] for image, *cells in predictions.itertuples()]
    lines = [[image, predicted, *(f"{value:.6f}" for value in values)] for image, predicted, *values in rows]
    if out is not None:
        write_csv(out, header, lines)
        say(notes(), f"{len(lines)} images: {out}")
    if label_next is not None:
        order = label_order(predictions[classes].to_numpy())[:LABELLED_NEXT]
        write_csv(label_next, header, [lines[row] for row in order])
        say(notes(), f"{len(order)} images to label: {label_next}")
    if json:
        say_json([dict(zip(header, row, strict=True)) for row in rows])
    elif out is None and label_next is None:
        say(results(), csv_bytes(header, lines).decode().rstrip("\n"))
