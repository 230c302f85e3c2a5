"""What the shell completes: jobs, presets and backbones; torch is not imported for it, unless a plug-in does."""

from __future__ import annotations

from collections.abc import Iterable

import typer

from grandrounds.errors import GrandRoundsError


def job(incomplete: str) -> list[str]:
    """Names of jobs that begin so."""
    from grandrounds.deployment.jobs import job_names

    return _beginning(job_names(), incomplete)


def preset(ctx: typer.Context, incomplete: str) -> list[str]:
    """Presets of the job on the command line; after a comma further ones."""
    from grandrounds.deployment.jobs import read_job
    from grandrounds.deployment.presets import presets_of

    before, comma, last = incomplete.rpartition(",")
    try:
        # While the shell completes, click leaves the job among the words that it has not read.
        names = presets_of(read_job(ctx.params.get("job") or next(iter(ctx.args), "")))
    except GrandRoundsError:
        return []
    return [f"{before}{comma}{name}" for name in _beginning(names, last)]


def backbone(incomplete: str) -> list[str]:
    """Names of networks that begin so, those of plug-ins included."""
    from grandrounds.plugins import plugin_modules
    from grandrounds.protocol.names import BACKBONE_NAMES

    names = list(BACKBONE_NAMES)
    if plugin_modules():
        from grandrounds.models.backbones.own import OWN_BACKBONES

        names += OWN_BACKBONES.all()
    return _beginning(names, incomplete)


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
