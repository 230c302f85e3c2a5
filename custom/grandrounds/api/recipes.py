"""A job as a FLARE recipe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grandrounds.api.methods import ConfiguredMethod, unfolded
from grandrounds.console.output import notes, say
from grandrounds.deployment.jobs import Job, load_job
from grandrounds.deployment.presets import with_preset
from grandrounds.deployment.submission import with_roster
from grandrounds.option_annotations import require_type

if TYPE_CHECKING:
    from grandrounds.deployment.recipe import JobRecipe


def recipe(
    job: str | Path | Job | ConfiguredMethod, *, preset: str | None = None, sites: Sequence[str] = (), **options: Any
) -> JobRecipe:
    """A job as a FLARE recipe, for ``SimEnv``, ``PocEnv`` and ``ProdEnv`` of ``nvflare.recipe``.

    Args:
        job: a name of ``grandrounds jobs``, the folder of a job, or ``gr.FedPerl(peers=2)``.
        preset: named options of the job; several are separated by commas.
        sites: that take part, by name; by default all of the environment.
        options: of the job, by name: ``peers=2``. A name that two parts have needs its part: ``**{"executor.min_support":
            2}``.

    Returns:
        A ``Recipe``. ``run`` and ``execute`` train, ``export`` writes the job, FLARE's other methods add to it.

    Raises:
        ConfigurationError: if there is no such job, preset or option, or a value does not fit; nothing is written then.

    Example:
        >>> import grandrounds as gr
        >>> from nvflare.recipe import SimEnv
        >>> recipe = gr.recipe("fedperl", peers=3, rounds=2)
        >>> recipe.execute(SimEnv(num_clients=2)).get_result()  # doctest: +SKIP
    """
    from grandrounds.deployment.recipe import JobRecipe

    require_type(preset, str | None, "preset")
    require_type(sites, list[str], "sites")
    name, preset, values = unfolded(job, preset, {})
    configured = name if isinstance(name, Job) else load_job(name)
    given = {configured.key_of(option): value for option, value in options.items()}
    made = with_preset(configured, preset, {**values, **given}).checked()
    mandatory = made.options("controller").get("mandatory_sites") or ()
    return JobRecipe(with_roster(made, sites, mandatory).checked(), lambda line: say(notes(), line))
