"""``grandrounds import``, ``partition`` and ``advise``: images become the sites of a simulation, and where to start."""

from __future__ import annotations

import inspect
import json as json_format
import math
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

import typer
from rich.table import Table

from grandrounds.api import advising
from grandrounds.checks import did_you_mean
from grandrounds.commands.options import Json, comma_separated
from grandrounds.console.account import account_lines
from grandrounds.console.output import notes, results, say, say_json, table_of
from grandrounds.data.datasets.own_options import FolderOptions, ManifestOptions
from grandrounds.data.families import DATASETS, options_class
from grandrounds.data.options import SCHEME_DEFAULTS, MalignancyOptions, MutualOptions, PartitionOptions
from grandrounds.errors import ConfigurationError, UsageError
from grandrounds.options import Annotation, annotations_of, describe, fits

if TYPE_CHECKING:
    from grandrounds.api.sites import Sites


SHOWN_DIGITS = 12
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace another partition.")]
LAYOUTS: Mapping[str, str] = {
    "ham10000": "HAM10000: HAM10000_metadata.csv and folders of JPEG files.",
    "ham10000_malignancy": "HAM10000 as benign and malignant, its four devices as sites.",
    "pbc": "PBC_dataset_normal_DIB: a folder for each of its eight classes.",
}
"""The published layout of each data set below ``--root``."""


def partition(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The data set.")] = None,
    root: Annotated[Path | None, typer.Option(help="Folder (or archive) of the data set.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the partition; it must contain nothing else.")] = None,
    scheme: Annotated[str | None, typer.Option(help="Short for --set scheme=NAME.")] = None,
    sites: Annotated[int | None, typer.Option(min=1, help="Short for --set sites=N.")] = None,
    labelled: Annotated[float | None, typer.Option(min=0, max=1, help="Short for --set labelled=SHARE.")] = None,
    seed: Annotated[int | None, typer.Option(help="Short for --set seed=N.")] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set an option of the data set; repeatable.")
    ] = None,
    options: Annotated[bool, typer.Option("--options", help="Show the data set's options and stop.")] = False,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Divide a published data set between simulated hospitals.

    Writes a manifest and a site configuration for every site, and partition.json, which describes them. No image is copied.
    The images of a patient or lesion stay together, between sites and between splits, unless an option changes this.
    Each data set has its own options: grandrounds partition NAME --options shows them, without NAME all data sets, those of
    plug-ins too. Images of your own: grandrounds import --help

    Data sets:
      {layouts}

    Examples:
      grandrounds partition ham10000 --root DIR --sites 10 --out runs/ham/sites
      # classes unevenly distributed
      grandrounds partition ham10000 --root DIR --scheme dirichlet --set alpha=0.5 --out runs/ham/mixed
      # labels at few hospitals, or at the server only
      grandrounds partition ham10000 --root DIR --set scenario=few_labels --set labelled_sites=site-1,site-2 --out runs/few
      grandrounds partition ham10000 --root DIR --set server_images=500 --set scenario=server_labels --out runs/ham/server
      # wrong labels, for mutual learning
      grandrounds partition pbc --root DIR --set noise=pair --set noise_rate=0.1 --out runs/pbc/sites
    """
    from grandrounds.api.sites import partition as divide
    from grandrounds.data.families import dataset_options

    if options:
        results().print(_data_sets() if name is None else option_table(options_class(name, dataset_options())))
        return
    if name is None or root is None or out is None:
        raise UsageError(
            "give NAME, --root and --out; images of your own: grandrounds import FOLDER --out DIR; public data sets: "
            "grandrounds partition --options"
        )
    short = {"scheme": scheme, "sites": sites, "labelled": labelled, "seed": seed}
    given: dict[str, Any] = {key: value for key, value in short.items() if value is not None}
    given |= values_of(annotations_of(options_class(name, dataset_options())), assignments or ())
    show_partition(divide(name, root, out, overwrite=overwrite, warn=False, **given), out, json)


_LISTED = "\n      ".join(f"{name:<20} {layout}" for name, layout in LAYOUTS.items())
partition.__doc__ = str(partition.__doc__).format(layouts=_LISTED)


def values_of(known: Mapping[str, Annotation], assignments: Iterable[str]) -> dict[str, Any]:
    """The values of ``key=value`` for options with these annotations; later ones win.

    Raises:
        UsageError: if there is no such option.

    Example:
        >>> values_of(annotations_of(PartitionOptions), ["alpha=0.5", "labelled_sites=site-1,site-2"])
        {'alpha': 0.5, 'labelled_sites': ['site-1', 'site-2']}
    """
    values = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or key not in known:
            hint = did_you_mean(key, known)
            raise UsageError(f"--set {assignment}: expected KEY=VALUE, KEY one of {', '.join(known)}{hint}")
        values[key] = _value(text, known[key].type)
    return values


def _value(text: str, annotation: Any) -> Any:
    """A value from text: JSON, text, a path, or a list with commas."""
    kinds = set(get_args(annotation)) - {type(None)} if type(None) in get_args(annotation) else {annotation}
    if kinds == {tuple[str, ...]}:
        return comma_separated(text)
    if get_origin(annotation) is tuple:
        return parse_windows(text)
    if kinds == {Path}:
        return None if text == "null" else Path(text)
    try:
        value = json_format.loads(text)
    except json_format.JSONDecodeError:
        return text
    return text if not fits(value, annotation) and fits(text, annotation) else value


def _data_sets() -> Table:
    """All data sets with their layouts."""
    from grandrounds.data.families import own_datasets

    layouts = {**LAYOUTS, **{name: own.layout for name, own in own_datasets().items()}}
    return table_of(("data set", "what is below --root"), layouts.items())


def option_table(group: type[PartitionOptions]) -> Table:
    """The options of a data set: key, what it may be, default and meaning."""
    table = Table("key", "value", "default", "meaning")
    for option in describe(group):
        default = "required" if option.default is MISSING else json_format.dumps(option.default, default=str)
        table.add_row(option.name, option.allowed, scheme_defaults(option.name, group) or default, option.meaning)
    return table


def scheme_defaults(name: str, group: type[PartitionOptions]) -> str:
    """The default of an option for each scheme of a group; empty for an option that has none."""
    if name not in group.defaults:
        return ""
    schemes = [scheme for scheme in group.schemes if scheme in SCHEME_DEFAULTS]
    values = {scheme: SCHEME_DEFAULTS[scheme].get(name, group.defaults[name]) for scheme in schemes}
    others = [f"{value} with {scheme}" for scheme, value in values.items() if value != group.defaults[name]]
    return ", ".join([str(group.defaults[name]), *others])


def parse_windows(text: str) -> list[tuple[float, float]]:
    """Windows written as ``centre:width,centre:width``.

    Raises:
        ConfigurationError: if they are written otherwise.

    Example:
        >>> parse_windows("40:80, 80:200")
        [(40.0, 80.0), (80.0, 200.0)]
    """
    try:
        pairs = [part.split(":") for part in text.split(",")]
        return [(float(centre), float(width)) for centre, width in pairs]
    except ValueError:
        raise ConfigurationError(f"expected CENTRE:WIDTH,..., for example 40:80,80:200,40:380; got {text!r}") from None


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
    made_for = _fitting_job(description)
    command = f"grandrounds simulate {made_for}--sites-dir {out}"
    if not made_for and any(summary.get("labelled") for summary in description["sites"].values()):
        command = advising.advise(advising.situation(out)).command(out)
    why = "names other methods; the job that was made for such sites" if made_for else "says why, and other methods"
    return [*lines, f"written to {out}; grandrounds advise --sites-dir {out} {why}:", f"  {command}"]


def _fitting_job(description: Mapping[str, Any]) -> str:
    """The job for such a partition, with the options that it needs to run on it; empty for what runs without a job."""
    if "import" in description:
        return ""
    if "public_set" in description:
        return "mdhfl "
    if description.get("preprocess") == "mammogram":
        return (
            "fed_align_cl --set problem.channels=1 --set problem.image_size=256 --set problem.intensities=standardised "
        )
    group = DATASETS.get(description.get("dataset", ""), PartitionOptions)
    return "fed_align_cl " if issubclass(group, MalignancyOptions) else ""


def partition_table(description: Mapping[str, Any]) -> Table:
    """The sites of a partition as a table."""
    numbers = ("train", "labelled", "val", "test", *description["classes"])
    rows = []
    for site, summary in description["sites"].items():
        images, name = summary["images"], description.get("site_names", {}).get(site)
        counts = [images["train"], summary["labelled"], images["val"], images["test"]]
        counts += [summary["classes"][name] for name in description["classes"]]
        shown = [f"{name} ({site})" if name else site, _sources(summary["sources"])]
        rows.append([*shown, *map(str, counts), summary["sha256"][:SHOWN_DIGITS]])
    title = f"data set {description['dataset_name']}"
    return table_of(("site", "source", *numbers, "sha256"), rows, numbers, title)


def _sources(counts: Mapping[str, int]) -> str:
    """The source of most images, and how many others there are."""
    named = {name: count for name, count in counts.items() if name}
    if not named:
        return "-"
    most = max(named, key=lambda name: named[name])
    return most if len(named) == 1 else f"{most} +{len(named) - 1}"


def import_(
    source: Path,
    root: Path | None,
    out: Path,
    assignments: list[str] | None,
    overwrite: bool,
    json: bool,
    **options: Any,
) -> None:
    """Read images of your own, account for every file or row, and divide them between sites.

    SOURCE is a folder (CLASS/*, SITE/CLASS/*; others are asked about), a .zip of it, or a table with the columns image and
    label and, optionally, patient, site, split, lesion, source and labelled: CSV with any separator, .xlsx, Parquet, JSON.
    What a file is, is seen from its bytes. No image is copied. All labels are used, and of the images of a site 70 % are
    for training, 10 % for validation and 20 % for testing, unless the table or the folders say otherwise.

    Examples:
      grandrounds import FOLDER --out runs/own/sites
      grandrounds import FOLDER --scheme dirichlet --set alpha=0.5 --out runs/own/mixed
      grandrounds import sheet.xlsx --columns image=Bild,label=Diagnose,patient=Fall --root IMAGES --out runs/own/sites
      grandrounds simulate --sites-dir runs/own/sites
    """
    from grandrounds.api.sites import Sites

    options |= values_of(BY_SET, assignments or ())
    sites = Sites.from_source(source, root, out, overwrite=overwrite, warn=False, **options)
    if not json and sites.own_images:
        from grandrounds.reporting.local import write_import_page

        description = sites.description
        lines = [*account_lines(description), *sites.remarks]
        page = write_import_page(out, description, lines, what_next(description, out)[-1].strip())
        say(results(), f"what each image has become: {page}; it shows patients' images and stays here")
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
        extras["show_default"] = False
        if by_scheme := scheme_defaults(field.name, group):
            extras["help"] = f"{extras['help'][:-1]}; default: {by_scheme}."
        return _parameter(field.name, Annotated[kind | None, typer.Option(*declarations, **extras)], None)
    return _parameter(field.name, Annotated[kind, typer.Option(*declarations, **extras)], field.default)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


vars(import_)["__signature__"] = inspect.Signature(_parameters())


def advise(
    sites_dir: Annotated[Path, typer.Option(help="Folder of a partition, as of grandrounds import or partition.")],
    networks: Annotated[
        advising.Networks, typer.Option(help="One network for all sites, or each site has a network of its own.")
    ] = "one",
    leaves: Annotated[
        advising.Leaves,
        typer.Option(
            help="What may leave a site: exact sums of features (they say much of a site), model updates, or only updates "
            "with noise, under an epsilon."
        ),
    ] = "sums",
    json: Json = False,
) -> None:
    """Recommend one method for the sites of a partition: the command, the reason, and the committed evidence.

    Examples:
      grandrounds advise --sites-dir runs/ham/sites
      grandrounds advise --sites-dir runs/ham/sites --leaves updates
      grandrounds advise --sites-dir runs/cells/sites --networks own
    """
    situation = advising.situation(sites_dir, networks, leaves)
    advice = advising.advise(situation)
    command = advice.command(sites_dir)
    if json:
        say_json({"command": command, **asdict(advice)})
        return
    for line in [*situation.lines, command, f"why: {advice.reason}", f"evidence: {advice.evidence}"]:
        say(results(), line)
