"""The methods of the package by name, with their options as arguments: ``gr.FedPerl(peers=2)``.

A constructor is made when it is first used. What it takes is in the generated stub of the package, ``__init__.pyi``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grandrounds import CONSTRUCTORS

if TYPE_CHECKING:
    from grandrounds.deployment.jobs import Job, Values
    from grandrounds.options import Annotation

NOT_BY_NAME = ("problem", "preset")
"""Options of controllers that are no argument: a part of its own, and the record of the presets."""


@dataclass(frozen=True)
class ConfiguredMethod:
    """A job of the package with a preset and options; :func:`grandrounds.run`, ``sweep`` and ``recipe`` take it as job.

    Attributes:
        name: of the job.
        preset: named options; None for those of the job.
        values: options by part and name; they win.
    """

    name: str
    preset: str | None
    values: Values


def constructor(name: str) -> Callable[..., ConfiguredMethod]:
    """The function of this name: it takes a job's options, and tells them to a notebook with types and meanings."""
    from grandrounds.deployment.jobs import load_job
    from grandrounds.options import require_value

    job = load_job(CONSTRUCTORS[name])
    options = options_by_name(job)

    def construct(*, preset: str | None = None, **given: Any) -> ConfiguredMethod:
        from grandrounds.deployment.presets import with_preset

        values = {job.key_of(option): value for option, value in given.items()}
        for option, value in given.items():
            if option in options:
                _, known = options[option]
                require_value(value, known.type, known.bounds, f"{name}: {option}")
        with_preset(job, preset, values)
        return ConfiguredMethod(job.name, preset, values)

    preset = inspect.Parameter("preset", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=str | None)
    parameters = [
        preset.replace(name=option, default=job.value(part, option), annotation=known.type)
        for option, (part, known) in options.items()
    ]
    signature = inspect.Signature([preset, *parameters], return_annotation=ConfiguredMethod)
    construct.__signature__ = signature  # type: ignore[attr-defined]
    construct.__name__ = construct.__qualname__ = name
    meanings = [f"    {option}: {known.meaning}." for option, (_, known) in options.items()]
    construct.__doc__ = "\n".join([f"{job.meta['summary']}.", "", "Args:", "    preset: named options.", *meanings])
    return construct


def options_by_name(job: Job) -> dict[str, tuple[str, Annotation]]:
    """Part and annotation of the options of a job that a name alone identifies, those for everyone first."""
    from grandrounds.deployment.jobs import JOB_PARTS, option_groups
    from grandrounds.options import Tier, annotations_of

    options: dict[str, dict[str, Annotation]] = {}
    for part in JOB_PARTS:
        for group in option_groups(job, part).values():
            for option, known in annotations_of(group).items():
                if option not in NOT_BY_NAME:
                    options.setdefault(option, {}).setdefault(part, known)
    alone = {option: next(iter(parts.items())) for option, parts in options.items() if len(parts) == 1}
    return dict(sorted(alone.items(), key=lambda entry: list(Tier).index(entry[1][1].tier)))


def unfolded(job: Any, preset: str | None, values: Values) -> tuple[Any, str | None, Values]:
    """Job, preset and values; of a configured method its own, where no others are given."""
    if not isinstance(job, ConfiguredMethod):
        return job, preset, values
    if preset and job.preset:
        from grandrounds.errors import ConfigurationError

        raise ConfigurationError(
            f"{job.name} has the preset {job.preset}, and preset={preset} is given beside it; drop one"
        )
    return job.name, preset or job.preset, {**job.values, **values}
