"""Skeletons of plug-ins: a package with one piece, and a test that runs it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path
from typing import Literal

from grandrounds import __version__
from grandrounds.errors import ConfigurationError
from grandrounds.plugins import PLUGIN_NAME

Kind = Literal["method", "backbone", "dataset", "view", "loss", "aggregator"]
USES: Mapping[Kind, str] = {
    "aggregator": "grandrounds simulate fedavg --set controller.aggregator={name}",
    "backbone": "grandrounds simulate fedavg --backbone {name}",
    "dataset": "grandrounds partition {name} --root DIR --out runs/{name}",
    "loss": "grandrounds simulate fedavg --set executor.loss={name}",
    "method": "grandrounds simulate {name}",
    "view": "grandrounds simulate fedavg --set executor.weak_view={name}",
}
"""A command that uses a plug-in of each kind."""


def write_skeleton(kind: Kind, name: str, folder: Path) -> list[Path]:
    """Write a package of one module that works, to be changed.

    Args:
        kind: what it adds.
        name: of the module and of what it registers.
        folder: is made, and must not exist.

    Returns:
        The files that were written.

    Raises:
        ConfigurationError: if the name does not fit, or the folder exists.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    if not PLUGIN_NAME.fullmatch(name):
        raise ConfigurationError(f"the name must be 2 to 40 lower-case letters, digits and _; got {name!r}")
    if folder.exists():
        raise ConfigurationError(f"{folder} exists; choose another folder")
    if iskeyword(name) or find_spec(name):
        raise ConfigurationError(
            f"{name} is a word or a module of Python here, which cannot be replaced; choose another"
        )
    if name in _registered(kind):
        raise ConfigurationError(f"there is a {kind} {name} already; choose another name")
    loader = PackageLoader("grandrounds.deployment", "templates/plugin")
    environment = Environment(loader=loader, undefined=StrictUndefined, keep_trailing_newline=True)  # not HTML
    words = {
        "name": name,
        "project": name.replace("_", "-"),
        "Class": "".join(part.capitalize() for part in name.split("_")),
        "kind": "data set" if kind == "dataset" else kind,
        "version": __version__,
        "use": USES[kind].format(name=name),
    }
    templates = {f"{name}.py": f"{kind}.py", f"test_{name}.py": f"test_{kind}.py"}
    templates |= {file: file for file in ("pyproject.toml", "README.md")}
    folder.mkdir(parents=True)
    for file, template in templates.items():
        text = environment.get_template(f"{template}.jinja").render(words)
        (folder / file).write_text(text, encoding="utf-8")
    return [folder / file for file in templates]


def _registered(kind: Kind) -> Collection[str]:
    """The names of this kind that the package and its plug-ins have."""
    from grandrounds.data.families import dataset_options
    from grandrounds.data.images.augmentation import view_names
    from grandrounds.deployment.jobs import job_names
    from grandrounds.federation.server.robust import OWN_RULES
    from grandrounds.methods.supervised.loss import OWN_LOSSES
    from grandrounds.models.registry import backbone_names

    names: dict[Kind, Callable[[], Collection[str]]] = {
        **{"backbone": backbone_names, "dataset": dataset_options, "method": job_names, "view": view_names},
        **{"loss": OWN_LOSSES.all, "aggregator": OWN_RULES.all},
    }
    return names[kind]()
