"""``grandrounds partition``: one data set becomes the hospitals of a simulation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from grandrounds.commands.choices import (
    ClientPartitionChoice,
    DatasetChoice,
    FewLabelsChoice,
    GroupByChoice,
    MultiChoice,
    ScenarioChoice,
    SchemeChoice,
    VariantChoice,
)
from grandrounds.commands.options import Json, comma_separated
from grandrounds.commands.output import notes, results, say, say_json

SHOWN_DIGITS = 12
LINES = 10
"""How many lines tell the progress of a reading where there is no terminal."""

HELP = """Divide a data set between simulated hospitals.

Writes a manifest and a site configuration for every site, and partition.json, which describes them. No image is copied.
The images of a patient or lesion stay together, between sites and between splits, unless you ask for the way of a paper
that divides them.

[bold]Data sets[/bold], as published:

\b
  ham10000   HAM10000_metadata.csv and folders of JPEG files
  isic2018   task 3: ISIC2018_Task3_Training_GroundTruth.csv, ..._LesionGroupings.csv and ISIC2018_Task3_Training_Input
  lesions    DIR has the folders isic2019, ham10000, pad_ufes_20 and derm7pt, each with that data set
  isic2020   ISIC_2020_Training_GroundTruth_v2.csv (or train.csv) and the folder train
  rsna_ich   stage_2_train.csv and the folder stage_2_train (or stage_2_train_images) of DICOM files
  manifest   any images, listed in a CSV file

[bold]Examples[/bold]

\b
  grandrounds partition ham10000 --root DIR --sites 10 --out runs/ham/sites
  grandrounds partition ham10000 --root DIR --scheme dirichlet --alpha 0.5 --out runs/ham/mixed
  grandrounds partition manifest --root IMAGES --manifest all.csv --dataset-name skin --scheme iid --sites 4 --out DIR

\b
  # FedPerl's ten clients: every hospital has some labels
  grandrounds partition lesions --root DIR --scheme fedperl --out runs/lesions/sites
  # the same with the images that HAM10000 and ISIC 2019 share, as in the paper
  grandrounds partition lesions --root DIR --scheme fedperl --variant paper --out runs/lesions/paper
  # labels at the server alone, 80% of its images for training
  grandrounds partition lesions --root DIR --scheme fedperl --scenario server_labels --out runs/lesions/server
  grandrounds partition ham10000 --root DIR --server-images 500 --scenario server_labels --out runs/ham/server
  # labels at a few hospitals (fedperl: site-2 and site-10)
  grandrounds partition lesions --root DIR --scheme fedperl --scenario few_labels --out runs/lesions/few
  grandrounds partition ham10000 --root DIR --scenario few_labels --labelled-sites site-1,site-2 --out runs/ham/few
  # FedIRM's ten clients, two with labels: skin lesions (as in the paper with --group-by image) and haemorrhages
  grandrounds partition isic2018 --root DIR --sites 10 --validation 0.1 --test 0.2 \\
    --scenario few_labels --labelled-sites site-1,site-2 --out runs/isic2018/sites
  grandrounds partition rsna_ich --root DIR --sites 10 --validation 0.1 --test 0.2 --slices 25000 \\
    --client-partition slice --scenario few_labels --labelled-sites site-1,site-2 --out runs/ich/sites
  # two of these with labels and two without, of the same size
  grandrounds simulate JOB --sites-dir runs/ich/sites --sites 4 --workspace runs/ich/four
  # slices under the brain window alone; slices of your own
  grandrounds partition rsna_ich --root DIR --windows 40:80 --out runs/ich/brain
  grandrounds partition manifest --root CT --manifest ct.csv --dataset-name ct --windows 40:80,80:200,40:380 --out DIR
  # a hospital that took no part in training
  grandrounds partition isic2020 --root DIR --out runs/isic2020
  grandrounds evaluate runs/lesions --sites-dir runs/isic2020 --groups "malignant=mel,bcc,ak,scc;benign=nv,bkl,df,vasc"
"""


def partition(
    dataset: Annotated[DatasetChoice, typer.Argument(help="What to divide, see above.")],
    root: Annotated[Path, typer.Option(help="Folder of the data set; for manifest: folder or archive of the images.")],
    out: Annotated[Path, typer.Option(help="Folder of the partition; it must hold nothing else.")],
    scheme: Annotated[
        SchemeChoice | None,
        typer.Option(
            help="By source, by class (Dirichlet), at random, FedPerl's ten clients, or one unseen site with test images; "
            "default: sites, for isic2018 and rsna_ich iid, for isic2020 unseen.",
            show_default=False,
        ),
    ] = None,
    sites: Annotated[
        int | None, typer.Option(min=1, help="Number of sites; default: 10, for unseen 1.", show_default=False)
    ] = None,
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
    variant: Annotated[
        VariantChoice | None,
        typer.Option(
            help="For lesions: without the images that two of its data sets share, or with them as in the paper, image "
            "by image; default: clean.",
            show_default=False,
        ),
    ] = None,
    server_images: Annotated[
        int, typer.Option(min=0, help="Images of the server itself, for validation; fedperl has its own 1000.")
    ] = 0,
    server_training: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Share of the server's images for training; default: 0.8 for server_labels, else 0.",
            show_default=False,
        ),
    ] = None,
    scenario: Annotated[
        ScenarioChoice, typer.Option(help="Labels at every site, at the server alone, or at few sites.")
    ] = ScenarioChoice.STANDARD,
    labelled_sites: Annotated[
        str | None,
        typer.Option(
            help="For few_labels: who has labels, a,b,c; default for fedperl: site-2,site-10.", show_default=False
        ),
    ] = None,
    few_labels_use: Annotated[
        FewLabelsChoice | None,
        typer.Option(
            help="For few_labels: labels of all training images there, or of the labelled part; default: pool.",
            show_default=False,
        ),
    ] = None,
    group_by: Annotated[
        GroupByChoice | None,
        typer.Option(
            help="For ham10000 and isic2018: keep the images of a lesion together, or divide image by image as in the "
            "FedIRM paper; default: lesion.",
            show_default=False,
        ),
    ] = None,
    multi: Annotated[
        MultiChoice | None,
        typer.Option(
            help="For rsna_ich: leave slices with several subtypes out, or take their first; default: drop.",
            show_default=False,
        ),
    ] = None,
    slices: Annotated[
        int | None,
        typer.Option(min=1, help="For rsna_ich: how many to draw, by patients; default: 25000.", show_default=False),
    ] = None,
    patients: Annotated[
        Path | None,
        typer.Option(
            help="For rsna_ich: table image,patient; what it lacks is read from the DICOM headers and added; default: "
            "patients.csv in the root.",
            show_default=False,
        ),
    ] = None,
    client_partition: Annotated[
        ClientPartitionChoice | None,
        typer.Option(
            help="For rsna_ich with iid: give whole patients to a site, or single slices as in the FedIRM paper (no "
            "patient is in two splits either way); default: patient.",
            show_default=False,
        ),
    ] = None,
    windows: Annotated[
        str | None,
        typer.Option(
            help="For rsna_ich, and for manifest with CT slices in DICOM files: CENTRE:WIDTH in Hounsfield units for each "
            "channel; default: 40:80,80:200,40:380 for rsna_ich, else what the files say.",
            show_default=False,
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace another partition in the folder.")] = False,
    json: Json = False,
) -> None:
    """Make a partition and show it."""
    from grandrounds.data.recipes import make_partition

    with reading_progress(notes()) as progress:
        description = make_partition(
            str(dataset),
            root,
            _word(scheme),
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
            variant=_word(variant),
            server_images=server_images,
            server_training=server_training,
            scenario=str(scenario),
            labelled_sites=comma_separated(labelled_sites),
            few_labels_use=_word(few_labels_use),
            group_by=_word(group_by),
            multi=_word(multi),
            slices=slices,
            patients=patients,
            client_partition=_word(client_partition),
            windows=parse_windows(windows),
            progress=progress,
        )
    if json:
        say_json(description)
        return
    console = results()
    console.print(partition_table(description))
    for line in what_next(description, out):
        say(console, line)


def _word(choice: StrEnum | None) -> str | None:
    """A choice as a plain word: random streams are derived from words, and their type counts."""
    return None if choice is None else str(choice)


def parse_windows(text: str | None) -> list[tuple[float, float]] | None:
    """Windows written as ``centre:width,centre:width``; None stays None.

    Raises:
        typer.BadParameter: if they are written otherwise.

    Example:
        >>> parse_windows("40:80, 80:200")
        [(40.0, 80.0), (80.0, 200.0)]
    """
    if text is None:
        return None
    try:
        pairs = [part.split(":") for part in text.split(",")]
        return [(float(centre), float(width)) for centre, width in pairs]
    except ValueError:
        raise typer.BadParameter(
            f"--windows is CENTRE:WIDTH,..., for example 40:80,80:200,40:380; got {text}"
        ) from None


@contextmanager
def reading_progress(console: Console) -> Iterator[Callable[[int, int], None]]:
    """What shows how far the reading of DICOM headers is: a bar on a terminal, some lines elsewhere."""
    if console.is_terminal:
        with Progress(console=console, transient=True) as bar:
            task = bar.add_task("reading patients from DICOM headers", total=None, visible=False)
            yield lambda done, total: bar.update(task, completed=done, total=total, visible=True)
        return
    said = -1

    def tell(done: int, total: int) -> None:
        nonlocal said
        if done * LINES // max(total, 1) > said:
            said = done * LINES // max(total, 1)
            say(console, f"reading patients from DICOM headers: {done} of {total}")

    yield tell


def what_next(description: Mapping[str, Any], out: Path) -> list[str]:
    """What is remarkable of a partition, where it is, and what to do with it.

    Args:
        description: what ``partition.json`` says.
        out: the partition's folder.
    """
    lines = [""]
    for source, images in description.get("scaled", {}).items():
        lines.append(
            f"{source} has {images['found']} images, the published counts need {images['needed']}: counts are scaled"
        )
    if not any(summary["images"]["train"] for summary in description["sites"].values()):
        return [*lines, f"written to {out}; to test a run's model on it: grandrounds evaluate RUN --sites-dir {out}"]
    if description.get("scenario", "standard") != "standard":
        return [*lines, f"written to {out}; methods and their options, for sites without labels too: grandrounds jobs"]
    runs = f"runs/{description['dataset_name']}"
    return [
        *lines,
        f"written to {out}; to train on it:",
        f"  grandrounds simulate fedperl --sites-dir {out} --workspace {runs}",
    ]


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
