"""``grandrounds partition``: one data set becomes the hospitals of a simulation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from grandrounds.commands.choices import ScenarioChoice
from grandrounds.commands.options import Json, comma_separated
from grandrounds.commands.output import notes, results, say, say_json
from grandrounds.commands.partition_options import (
    AlphaOption,
    BiradsThreeOption,
    ClassesOption,
    ClientPartitionOption,
    DatasetArgument,
    DatasetNameOption,
    FewLabelsUseOption,
    GroupByOption,
    LabelledOption,
    LabelledSitesOption,
    ManifestOption,
    MultiOption,
    NoiseEligibleOption,
    NoiseOption,
    NoiseRateOption,
    NormalsOption,
    OutOption,
    OverwriteOption,
    PatientsOption,
    PreprocessOption,
    PrivateImagesOption,
    PublicImagesOption,
    PublicOption,
    PublicRootOption,
    PublicShareOption,
    PublicSizeOption,
    PublishedTestOption,
    RootOption,
    ScenarioOption,
    SchemeOption,
    SeedOption,
    ServerImagesOption,
    ServerTrainingOption,
    SimulatedVendorsOption,
    SitesOption,
    SlicesOption,
    TestOption,
    ValidationOption,
    VariantOption,
    WindowsOption,
)

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
  matek19    AML-Cytomorphology: folders BAS to PMO of TIFF files; thirteen classes
  mll23      MLL23, or INT-20: a folder for each of its classes; the same thirteen
  pbc        PBC_dataset_normal_DIB: a folder for each of its eight classes
  bloodmnist bloodmnist.npz, or one of the larger ones
  cifar10    cifar10.npz
  ham10000_malignancy  HAM10000 as benign and malignant, its four devices as sites
  inbreast   INbreast.csv (save INbreast.xls as that) and AllDICOMs
  cbis_ddsm  the four tables mass_case_..., calc_case_... and the folder CBIS-DDSM
  cmmd       CMMD_clinicaldata_revision.csv (save the .xlsx as that) and the folder CMMD
  mini_mias  Info.txt and the PGM files
  mammograms DIR has some of the folders inbreast, cbis_ddsm, cmmd and mini_mias, each with that data set
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
  # MDH-FL: four sites of equal size, a fifth of the labels wrong, the whole of MLL23 as the public set
  grandrounds partition matek19 --root DIR --noise symmetric --noise-rate 0.2 --public mll23 --public-root MLL23 \\
    --out runs/cells/sites
  # the same with half of one data set as the public set
  grandrounds partition pbc --root DIR --noise pair --noise-rate 0.1 --out runs/pbc/sites
  # benign or malignant: four real devices; mammograms of several vendors, and of imaginary ones for a trial
  grandrounds partition ham10000_malignancy --root DIR --out runs/malignancy/sites
  grandrounds partition mammograms --root DIR --sites 4 --out runs/mammograms/sites
  grandrounds partition mini_mias --root DIR --simulated-vendors runs/mias/films --out runs/mias/sites
  # mammograms of your own
  grandrounds partition manifest --root DIR --manifest breast.csv --dataset-name breast --preprocess mammogram --out OUT
  # a hospital that took no part in training
  grandrounds partition isic2020 --root DIR --out runs/isic2020
  grandrounds evaluate runs/lesions --sites-dir runs/isic2020 --groups "malignant=mel,bcc,ak,scc;benign=nv,bkl,df,vasc"
"""


def partition(
    dataset: DatasetArgument,
    root: RootOption,
    out: OutOption,
    scheme: SchemeOption = None,
    sites: SitesOption = None,
    alpha: AlphaOption = 0.5,
    labelled: LabelledOption = None,
    validation: ValidationOption = None,
    test: TestOption = None,
    seed: SeedOption = 1,
    manifest: ManifestOption = None,
    dataset_name: DatasetNameOption = None,
    classes: ClassesOption = None,
    variant: VariantOption = None,
    server_images: ServerImagesOption = 0,
    server_training: ServerTrainingOption = None,
    scenario: ScenarioOption = ScenarioChoice.STANDARD,
    labelled_sites: LabelledSitesOption = None,
    few_labels_use: FewLabelsUseOption = None,
    group_by: GroupByOption = None,
    multi: MultiOption = None,
    slices: SlicesOption = None,
    patients: PatientsOption = None,
    client_partition: ClientPartitionOption = None,
    windows: WindowsOption = None,
    normals: NormalsOption = None,
    birads_3: BiradsThreeOption = None,
    published_test: PublishedTestOption = None,
    simulated_vendors: SimulatedVendorsOption = None,
    preprocess: PreprocessOption = None,
    noise: NoiseOption = None,
    noise_rate: NoiseRateOption = None,
    noise_eligible: NoiseEligibleOption = None,
    public: PublicOption = None,
    public_share: PublicShareOption = None,
    public_root: PublicRootOption = None,
    public_images: PublicImagesOption = None,
    private_images: PrivateImagesOption = None,
    public_size: PublicSizeOption = None,
    overwrite: OverwriteOption = False,
    json: Json = False,
) -> None:
    """Make a partition and show it."""
    choices = {name: _plain(value) for name, value in locals().items() if name not in ("json", "root", "out")}
    from grandrounds.data.partition.make import make_partition

    choices |= {name: comma_separated(choices[name]) for name in ("classes", "labelled_sites")}
    choices["windows"] = parse_windows(windows)
    with reading_progress(notes()) as progress:
        description = make_partition(root=root, out=out, progress=progress, **choices)
    if json:
        say_json(description)
        return
    console = results()
    console.print(partition_table(description))
    for line in what_next(description, out):
        say(console, line)


def _plain(value: Any) -> Any:
    """A choice as a plain word: random streams are derived from words, and their type counts."""
    return str(value) if isinstance(value, StrEnum) else value


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
        """Say it once for each tenth that is done."""
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
        f"  grandrounds simulate {_fitting_job(description)} --sites-dir {out} --workspace {runs}",
    ]


def _fitting_job(description: Mapping[str, Any]) -> str:
    """The job that was made for such a partition, with the options without which it cannot run on it."""
    from grandrounds.data.datasets.registry import MALIGNANCY

    if "public_set" in description:
        return "mdhfl"
    if description.get("preprocess") == "mammogram":
        return (
            "fed_align_cl --set problem.channels=1 --set problem.image_size=256 --set problem.intensities=standardised"
        )
    return "fed_align_cl" if description.get("dataset") in MALIGNANCY else "fedperl"


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
