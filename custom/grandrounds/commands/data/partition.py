"""``grandrounds partition``: one data set becomes the hospitals of a simulation.

Every data set is a sub-command, whose options are generated from the data set's option group.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

import typer
from rich.table import Table
from typer.core import TyperGroup

from grandrounds.commands.options import Json, comma_separated
from grandrounds.console.account import account_lines
from grandrounds.console.output import notes, results, say, say_json
from grandrounds.data.datasets.mammography.options import MalignancyOptions
from grandrounds.data.datasets.own_options import ManifestOptions
from grandrounds.data.families import DATASETS
from grandrounds.data.options import SCHEME_DEFAULTS, MutualOptions, PartitionOptions
from grandrounds.option_annotations import Annotation, annotations_of

if TYPE_CHECKING:
    from grandrounds.api.sites import Sites

SHOWN_DIGITS = 12
READING = "Reading the images"

PARTITION_HELP = """Divide a data set between simulated hospitals.

Writes a manifest and a site configuration for every site, and partition.json, which describes them. No image is copied.
The images of a patient or lesion stay together, between sites and between splits, unless an option changes this.
Each data set has its own options: grandrounds partition DATASET --help

[bold]Examples[/bold]

\b
  grandrounds partition ham10000 --root DIR --sites 10 --out runs/ham/sites
  # classes unevenly distributed
  grandrounds partition ham10000 --root DIR --scheme dirichlet --alpha 0.5 --out runs/ham/mixed
  # labels at few hospitals, or at the server only
  grandrounds partition ham10000 --root DIR --scenario few_labels --labelled-sites site-1,site-2 --out runs/ham/few
  grandrounds partition ham10000 --root DIR --server-images 500 --scenario server_labels --out runs/ham/server
  # your own images
  grandrounds partition folder --root IMAGES --out DIR
  grandrounds partition manifest --root IMAGES --manifest all.csv --dataset-name skin --scheme iid --sites 4 --out DIR
"""

LAYOUTS: Mapping[str, str] = {
    "ham10000": "HAM10000: HAM10000_metadata.csv and folders of JPEG files.",
    "isic2018": "ISIC 2018 task 3: ..._GroundTruth.csv, ..._LesionGroupings.csv and ..._Training_Input.",
    "lesions": "Skin lesions of FedPerl: the folders isic2019, ham10000, pad_ufes_20 and derm7pt.",
    "isic2020": "ISIC 2020: ISIC_2020_Training_GroundTruth_v2.csv (or train.csv) and the folder train.",
    "rsna_ich": "RSNA haemorrhages: stage_2_train.csv and the folder stage_2_train of DICOM files.",
    "matek19": "AML-Cytomorphology: folders BAS to PMO of TIFF files; thirteen classes.",
    "mll23": "MLL23, or INT-20: a folder for each of its classes; the same thirteen.",
    "pbc": "PBC_dataset_normal_DIB: a folder for each of its eight classes.",
    "bloodmnist": "BloodMNIST: bloodmnist.npz, or one of the larger ones.",
    "cifar10": "CIFAR-10: cifar10.npz.",
    "ham10000_malignancy": "HAM10000 as benign and malignant, its four devices as sites.",
    "inbreast": "INbreast: INbreast.csv (save INbreast.xls as that) and AllDICOMs.",
    "cbis_ddsm": "CBIS-DDSM: four tables mass_case_..., calc_case_... and the folder CBIS-DDSM.",
    "cmmd": "CMMD: CMMD_clinicaldata_revision.csv (save the .xlsx as that) and the folder CMMD.",
    "mini_mias": "mini-MIAS: Info.txt and the PGM files.",
    "mammograms": "Mammograms: some of the folders inbreast, cbis_ddsm, cmmd and mini_mias.",
    "folder": "Images of your own: ROOT/CLASS/*, ROOT/SITE/CLASS/* or ROOT/CLASS/PATIENT/*.",
    "manifest": "Images of your own that a table lists: CSV, .xlsx or Parquet.",
}
"""The published layout of each data set below ``--root``."""

FEW_LABELS = "--scenario few_labels --labelled-sites site-1,site-2"
EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "ham10000": (
        "--sites 10 --out runs/ham/sites",
        "--scheme dirichlet --alpha 0.5 --out runs/ham/mixed",
        f"{FEW_LABELS} --out runs/ham/few",
    ),
    "isic2018": (
        f"--sites 10 --validation 0.1 --test 0.2 {FEW_LABELS} --out runs/isic2018/sites",
        f"--group-by image --validation 0.1 --test 0.2 {FEW_LABELS} --out runs/isic2018/paper",
    ),
    "lesions": (
        "--scheme fedperl --out runs/lesions/sites",
        "--scheme fedperl --variant paper --out runs/lesions/paper",
        "--scheme fedperl --scenario server_labels --out runs/lesions/server",
        "--scheme fedperl --scenario few_labels --out runs/lesions/few",
    ),
    "rsna_ich": (
        f"--validation 0.1 --test 0.2 --slices 25000 --client-partition slice {FEW_LABELS} --out runs/ich/sites",
        "--windows 40:80 --out runs/ich/brain",
    ),
    "matek19": ("--noise symmetric --noise-rate 0.2 --public mll23 --public-root MLL23 --out runs/cells/sites",),
    "pbc": ("--noise pair --noise-rate 0.1 --out runs/pbc/sites",),
    "cifar10": ("--noise pair --noise-rate 0.2 --public folder --public-root FOLDER --out runs/cifar/sites",),
    "mammograms": ("--sites 4 --out runs/mammograms/sites",),
    "mini_mias": ("--simulated-vendors runs/mias/films --out runs/mias/sites",),
    "folder": (
        "--out runs/own/sites",
        "--patient-pattern '^.*/(P[0-9]+)_' --label-map naevus=nevus,unsure= --out runs/own/sites",
    ),
    "manifest": (
        "--manifest all.csv --dataset-name skin --scheme iid --sites 4 --out DIR",
        "--manifest ct.csv --dataset-name ct --windows 40:80,80:200,40:380 --out DIR",
        "--manifest breast.csv --dataset-name breast --preprocess mammogram --out DIR",
    ),
}
"""Examples of each data set, without the command and ``--root``; by default the folder alone."""

PANELS: Mapping[str, tuple[str, ...]] = {
        "Division between sites": ("scheme", "sites", "alpha", "devices", "seed", "group_by", "client_partition"),
        "Labels and splits": (
            "labelled", "labelled_images", "validation", "test", "splits", "published_test", "scenario", "labelled_sites",
            "few_labels_use", "server_images", "server_training",
        ),
        "With --scheme mdhfl": tuple(set(annotations_of(MutualOptions)) - set(annotations_of(PartitionOptions))),
}  # fmt: skip
"""The panels of the help and the options in them; all others are about reading the images."""

FAMILIES: Mapping[str, tuple[str, ...]] = {
    "Images of your own": ("folder", "manifest"),
    "Skin lesions": ("ham10000", "ham10000_malignancy", "isic2018", "isic2020", "lesions"),
    "Blood cells": ("matek19", "mll23", "pbc", "bloodmnist"),
    "Mammograms": ("inbreast", "cbis_ddsm", "cmmd", "mini_mias", "mammograms"),
}
"""The panels of the help and the data sets in them; all others have one of their own."""


def build_group() -> typer.Typer:
    """The command with a sub-command for each data set."""
    group = typer.Typer(cls=_WithPlugins, help=PARTITION_HELP, no_args_is_help=True, rich_markup_mode="rich")
    for dataset, options in DATASETS.items():
        _add(group, dataset, LAYOUTS[dataset], options)
    return group


def _add(group: typer.Typer, dataset: str, layout: str, options: type[PartitionOptions]) -> None:
    examples = EXAMPLES.get(dataset, (f"--out runs/{dataset}",))
    lines = "\n".join(f"  grandrounds partition {dataset} --root DIR {example}" for example in examples)
    panel = next((panel for panel, names in FAMILIES.items() if dataset in names), "Other data sets")
    text = f"{layout}\n\n[bold]Examples[/bold]\n\n\b\n{lines}"
    group.command(name=dataset, help=text, rich_help_panel=panel)(_command(dataset, options))


class _WithPlugins(TyperGroup):
    """Adds the data sets of plug-ins, which are imported when the command is used, not with every other one."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of all sub-commands."""
        return [*super().list_commands(ctx), *_plugin_commands()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A sub-command by its name."""
        return super().get_command(ctx, cmd_name) or _plugin_commands().get(cmd_name)


def _plugin_commands() -> Mapping[str, Any]:
    from grandrounds.data.own_datasets import own_datasets

    own = own_datasets()
    if not own:
        return {}
    group = typer.Typer(rich_markup_mode="rich")
    group.callback()(lambda: None)  # a group even of one command
    for dataset, found in own.items():
        _add(group, dataset, found.layout, found.options)
    built = typer.main.get_command(group)
    return dict(vars(built)["commands"])


def _command(dataset: str, group: type[PartitionOptions]) -> Callable[..., None]:
    """The function behind a sub-command, with the group's options as its parameters."""

    def partition(root: Path | None, out: Path, overwrite: bool, json: bool, **options: Any) -> None:
        from grandrounds.api.sites import partition as divide

        show_partition(divide(dataset, root, out, overwrite=overwrite, warn=False, **options), out, json)

    folder, images = "Folder of the partition; it must contain nothing else.", "Folder (or archive) of the images."
    root: tuple[Any, ...] = (Annotated[Path, typer.Option(help=images)],)
    if issubclass(group, ManifestOptions):
        root = (Annotated[Path | None, typer.Option(help=f"{images[:-1]}; default: the table's folder.")], None)
    vars(partition)["__signature__"] = inspect.Signature(
        [
            command_parameter("root", *root),
            command_parameter("out", Annotated[Path, typer.Option(help=folder)]),
            *option_parameters(group),
            *LAST_PARAMETERS,
        ]
    )
    return partition


def show_partition(sites: Sites, out: Path, json: bool) -> None:
    """Print a new partition: what became of the files, its sites, and what to do with it."""
    description = sites.description
    for remark in sites.remarks:
        say(notes(), f"warning: {remark}")
    if json:
        say_json(description)
        return
    console = results()
    for line in account_lines(description):
        say(console, line)
    console.print(partition_table(description))
    for line in what_next(description, out):
        say(console, line)


def option_parameters(group: type[PartitionOptions]) -> list[inspect.Parameter]:
    """The options of a group as parameters of a typer command; None is the group's own default."""
    known = annotations_of(group)
    return [
        command_parameter(field.name, *_option(field.name, known[field.name], field.default, group))
        for field in fields(group)
    ]


def command_parameter(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    """A parameter of a typer command; without a default it is required."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


LAST_PARAMETERS = (
    command_parameter(
        "overwrite", Annotated[bool, typer.Option("--overwrite", help="Replace another partition.")], False
    ),
    command_parameter("json", Json, False),
)
"""Of every command that makes a partition."""


def _option(name: str, known: Annotation, default: Any, group: type[PartitionOptions]) -> tuple[Any, Any]:
    """Annotation and default of a parameter, from what the group states about the option."""
    kind = next(iter(set(get_args(known.type)) - {type(None)})) if type(None) in get_args(known.type) else known.type
    limits = known.bounds
    extras: dict[str, Any] = {
        "rich_help_panel": next((panel for panel, names in PANELS.items() if name in names), READING)
    }
    declarations = []
    if kind == tuple[str, ...]:
        extras |= {"parser": comma_separated, "metavar": "A,B,..."}
        kind = str
    elif get_origin(kind) is tuple:
        extras |= {"parser": parse_windows, "metavar": "CENTRE:WIDTH,..."}
        kind = str
    elif kind is bool:
        declarations = [f"--{name.replace('_', '-')}"]
    elif limits is not None:
        extras |= {"min": _finite(limits.minimum), "max": _finite(limits.maximum)}
    text = f"{known.meaning[0].upper()}{known.meaning[1:]}."
    if default is MISSING:
        return Annotated[kind, typer.Option(*declarations, help=text, **extras)], inspect.Parameter.empty
    if default is None or default is False or default == ():
        extras["show_default"] = _scheme_defaults(name, group)
        return Annotated[kind | None, typer.Option(*declarations, help=text, **extras)], None
    return Annotated[kind, typer.Option(*declarations, help=text, **extras)], default


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _scheme_defaults(name: str, group: type[PartitionOptions]) -> str | bool:
    """The default of an option for each scheme of a group; False for an option that has none."""
    if name not in group.defaults:
        return False
    schemes = [scheme for scheme in group.schemes if scheme in SCHEME_DEFAULTS]
    others = [f"{scheme} {SCHEME_DEFAULTS[scheme][name]}" for scheme in schemes if name in SCHEME_DEFAULTS[scheme]]
    return ", ".join([str(group.defaults[name]), *others])


def parse_windows(text: str) -> list[tuple[float, float]]:
    """Windows written as ``centre:width,centre:width``.

    Raises:
        typer.BadParameter: if they are written otherwise.

    Example:
        >>> parse_windows("40:80, 80:200")
        [(40.0, 80.0), (80.0, 200.0)]
    """
    try:
        pairs = [part.split(":") for part in text.split(",")]
        return [(float(centre), float(width)) for centre, width in pairs]
    except ValueError:
        raise typer.BadParameter(f"expected CENTRE:WIDTH,..., for example 40:80,80:200,40:380; got {text!r}") from None


def what_next(description: Mapping[str, Any], out: Path) -> list[str]:
    """Remarks on a partition, its folder, and the next command."""
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
        f"written to {out}; grandrounds advise --sites-dir {out} says which method; to train on it:",
        f"  grandrounds simulate {_fitting_job(description)} --sites-dir {out} --workspace {runs}",
    ]


def _fitting_job(description: Mapping[str, Any]) -> str:
    """The job for such a partition, with the options that it needs to run on it."""
    if "public_set" in description:
        return "mdhfl"
    if description.get("preprocess") == "mammogram":
        return (
            "fed_align_cl --set problem.channels=1 --set problem.image_size=256 --set problem.intensities=standardised"
        )
    if "import" in description and all(
        one["labelled"] == one["images"]["train"] for one in description["sites"].values()
    ):
        return "fedavg"  # semi-supervised methods need images without labels
    group = DATASETS.get(description.get("dataset", ""), PartitionOptions)
    return "fed_align_cl" if issubclass(group, MalignancyOptions) else "fedperl"


def partition_table(description: Mapping[str, Any]) -> Table:
    """The sites of a partition as a table."""
    table = Table("site", "source", title=f"data set {description['dataset_name']}", title_justify="left")
    for name in ("train", "labelled", "val", "test", *description["classes"]):
        table.add_column(name, justify="right")
    table.add_column("sha256")
    for site, summary in description["sites"].items():
        images, name = summary["images"], description.get("site_names", {}).get(site)
        table.add_row(
            f"{name} ({site})" if name else site,
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
