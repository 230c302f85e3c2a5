"""``grandrounds weights``: trained weights on this machine, also without internet access."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.table import Table

from grandrounds.commands.options import Json
from grandrounds.console.output import results, say, say_json
from grandrounds.errors import ConfigurationError

if TYPE_CHECKING:
    from grandrounds.models.pretrained import WeightsFile

WEIGHTS_HELP = """Trained weights that networks start from.

ImageNet weights are looked for in an installed package, in the folder $GRANDROUNDS_WEIGHTS (default
~/.local/share/grandrounds/weights), in torch's cache, and at their address, in this order.
"""
LIST_HELP = "List and check the weights that this machine has without a download; exit status 1 if one is damaged."
ADD_HELP = """Copy a file into the weights folder of this machine.

ImageNet weights are recognised by their SHA-256; [bold]problem.weights=imagenet[/bold] then finds them. Other weights need a
name, by which jobs refer to them, and how images were normalised in their training, where the
file or bundle does not state it.

[bold]Examples[/bold]

\b
  grandrounds weights add efficientnet-lite0-57934424.pth
  grandrounds weights add retina.pt --name retina --intensities imagenet --licence CC-BY-4.0
  grandrounds weights add endoscopic_inbody_classification --name endoscopy --licence Apache-2.0
"""


def build_group() -> typer.Typer:
    """The commands of ``grandrounds weights``."""
    group = typer.Typer(help=WEIGHTS_HELP, no_args_is_help=True, rich_markup_mode="rich")
    group.command("list", help=LIST_HELP)(list_files)
    group.command(help=ADD_HELP)(add)
    return group


def list_files(json: Json = False) -> None:
    """Show name, licence, size, digest and place of each file; after all, name those that are damaged."""
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
    """Add a file and show where it is."""
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
