"""``grandrounds partition``: one data set becomes the hospitals of a simulation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from grandrounds.commands.choices import DatasetChoice, SchemeChoice
from grandrounds.commands.options import Json, comma_separated
from grandrounds.commands.output import results, say, say_json

SHOWN_DIGITS = 12
HELP = """Divide a data set between simulated hospitals.

Writes a manifest and a site configuration for every site, and partition.json, which describes them. No image is copied.
The images of a patient or lesion stay together, between sites and between splits.

[bold]Examples[/bold]

\b
  grandrounds partition ham10000 --root DIR --sites 10 --out runs/ham/sites
  grandrounds partition ham10000 --root DIR --scheme dirichlet --alpha 0.5 --out runs/ham/mixed
  grandrounds partition manifest --root IMAGES --manifest all.csv --dataset-name skin --scheme iid --sites 4 --out DIR
"""


def partition(
    dataset: Annotated[DatasetChoice, typer.Argument(help="ham10000, or manifest for other images with a manifest.")],
    root: Annotated[Path, typer.Option(help="Folder of the data set; for manifest: folder or archive of the images.")],
    out: Annotated[Path, typer.Option(help="Folder of the partition; it must hold nothing else.")],
    scheme: Annotated[
        SchemeChoice, typer.Option(help="By source, by class (Dirichlet), at random, or FedPerl's ten clients.")
    ] = SchemeChoice.SITES,
    sites: Annotated[int, typer.Option(min=1, help="Number of sites.")] = 10,
    alpha: Annotated[
        float, typer.Option(help="Concentration for dirichlet: the smaller, the more sites differ.")
    ] = 0.5,
    labelled: Annotated[
        float, typer.Option(min=0, max=1, help="Share of the training images that keep their label.")
    ] = 0.25,
    validation: Annotated[float, typer.Option(min=0, max=1, help="Share of the images for validation.")] = 0.125,
    test: Annotated[float, typer.Option(min=0, max=1, help="Share of the images for testing.")] = 0.375,
    seed: Annotated[int, typer.Option(help="Of all random choices.")] = 1,
    manifest: Annotated[Path | None, typer.Option(help="For manifest: the CSV file that lists the images.")] = None,
    dataset_name: Annotated[str | None, typer.Option(help="For manifest: how jobs call the data set.")] = None,
    classes: Annotated[
        str | None, typer.Option(help="For manifest: the vocabulary, a,b,c; default: the labels that occur.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace another partition in the folder.")] = False,
    json: Json = False,
) -> None:
    """Make a partition and show it."""
    from grandrounds.data.recipes import make_partition

    description = make_partition(
        str(dataset),
        root,
        str(scheme),
        sites,
        out,
        labelled=labelled,
        validation=validation,
        test=test,
        alpha=alpha,
        seed=seed,
        overwrite=overwrite,
        manifest=manifest,
        dataset_name=dataset_name,
        classes=comma_separated(classes),
    )
    if json:
        say_json(description)
        return
    console = results()
    console.print(partition_table(description))
    say(console, f"\nwritten to {out}; to train on it:")
    say(console, f"  grandrounds simulate fedperl --sites-dir {out} --workspace runs/{description['dataset_name']}")


def partition_table(description: Mapping[str, Any]) -> Table:
    """The sites of a partition as a table.

    Args:
        description: what ``partition.json`` says.
    """
    table = Table("site", "source", title=f"data set {description['dataset_name']}", title_justify="left")
    for name in ("train", "labelled", "val", "test", *description["classes"]):
        table.add_column(name, justify="right")
    table.add_column("sha256")
    for site, summary in description["sites"].items():
        images = summary["images"]
        table.add_row(
            site,
            _sources(summary["sources"]),
            *(str(count) for count in (images["train"], summary["labelled"], images["val"], images["test"])),
            *(str(summary["classes"][name]) for name in description["classes"]),
            summary["sha256"][:SHOWN_DIGITS],
        )
    return table


def _sources(counts: Mapping[str, int]) -> str:
    """The source of most images, and how many others there are."""
    named = {name: count for name, count in counts.items() if name}
    if not named:
        return "-"
    most = max(named, key=lambda name: named[name])
    return most if len(named) == 1 else f"{most} +{len(named) - 1}"
