"""Presets: named sets of options that a job offers, and a record of what a run has made of them.

A job folder may hold ``presets.json``: by name an object with the parts ``controller``, ``executor`` and ``problem`` and
the options that the preset sets there. ``paper`` is a publication's text, ``code`` its authors' released code and
``recommended`` what this project advises where they differ. Others are variants of a method, such as ``rhfl`` of the job
``mdhfl``; several are applied in order: ``paper,rhfl``.

Options as text are ``part.option=value``: what a command line takes and shows; everything behind it passes typed values.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import starmap
from pathlib import Path
from typing import Any, TypedDict, Unpack

from grandrounds.checks import did_you_mean
from grandrounds.deployment.jobs import JOB_PARTS, NO_VALUES, Job, Key, Values, load_job, read_job
from grandrounds.errors import ConfigurationError, UsageError
from grandrounds.federation.own_methods import OWN_METHODS
from grandrounds.files import read_json_object
from grandrounds.option_keys import option_types
from grandrounds.options import fits, require_type
from grandrounds.remedies import nearest_number


def parsed(job: Job, assignments: Iterable[str]) -> Values:
    """The values of assignments, each read once with the annotation of its option; later ones win.

    Args:
        job: whose options are set.
        assignments: ``part.option=value`` with part ``controller``, ``executor`` or ``problem``; the value is JSON, or text
            where the option takes text.

    Raises:
        UsageError: for a part or an option that does not exist (the nearest one is named), or a value of another type.

    Example:
        >>> from grandrounds.deployment.jobs import load_job
        >>> parsed(load_job("fedperl"), ["controller.peers=3", "controller.run_name=2026"])
        {('controller', 'peers'): 3, ('controller', 'run_name'): '2026'}
    """
    values = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        part, dot, option = name.partition(".")
        if not equals:
            raise UsageError(f"--set {assignment}: expected part.option=value")
        if not dot:
            raise UsageError(
                f"--set {assignment}: expected part.option=value; did you mean {'.'.join(job.key_of(name))}?"
            )
        job.require_option(part, option)
        values[part, option] = _value(text, option_types(job.component(part))[option])
        try:
            require_type(values[part, option], option_types(job.component(part))[option], name)
        except ConfigurationError as error:
            kind = "integer" if "an integer" in str(error) else "number"
            near = nearest_number(text, kind) if text[:1].isdigit() else ""
            hint = f"; type --set {name}={near}" if near else ""
            raise UsageError(f"--set {assignment}: {error}{hint}") from error
    return values


def with_options(job: Job, assignments: Iterable[str]) -> Job:
    """A copy of the job with options set from text; as :func:`parsed`."""
    return job.with_values(parsed(job, assignments))


def assignment(key: Key, value: Any) -> str:
    """An option as it is given on a command line.

    Example:
        >>> assignment(("problem", "backbone"), "compact"), assignment(("controller", "grace"), None)
        ('problem.backbone=compact', 'controller.grace=null')
    """
    return f"{'.'.join(key)}={shown(value)}"


def shown(value: Any) -> str:
    """A value as a command line takes it: JSON, but text without quotes where that is no other JSON value."""
    return value if isinstance(value, str) and _json(value) == value else json.dumps(value)


def _value(text: str, annotation: Any) -> Any:
    value = _json(text)
    return text if not fits(value, annotation) and fits(text, annotation) else value


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


PRESETS_FILE = "presets.json"
RUN_NAME_OPTION = ("controller", "run_name")
RECOMMENDED = "recommended"
_BY_CLASS = (("controller", "class_balance"), ("executor", "logit_adjustment"))
"""Options that weigh images by their class; presets set them."""
FIRST_JOB = "ridge"
"""What runs on real images where no method is named: a head in closed form, from three messages of a site."""


def presets_of(job: Job) -> dict[str, dict[str, dict[str, Any]]]:
    """The presets that a job offers, by name.

    Raises:
        ConfigurationError: if the file is not a JSON object, or a preset has another part than a job has.
    """
    own = None if job.source else OWN_METHODS.all().get(job.name)
    if own is not None:
        return {name: {part: dict(values) for part, values in parts.items()} for name, parts in own.presets.items()}
    path = job.source / PRESETS_FILE if job.source else None
    if path is None or not path.is_file():
        return {}
    presets = read_json_object(path)
    for name, parts in presets.items():
        if not isinstance(parts, dict) or not all(
            part in JOB_PARTS and isinstance(parts[part], dict) for part in parts
        ):
            raise ConfigurationError(f"{path}: preset {name!r} must be an object with {', '.join(JOB_PARTS)}")
    return presets


def preset_lines(name: str | Path) -> list[str]:
    """A line for each preset of a job, with the options that it sets.

    Raises:
        ConfigurationError: if there is no such job.
    """
    lines = [
        f"--preset {preset}: {', '.join(starmap(assignment, values_in(parts).items()))}"
        for preset, parts in presets_of(read_job(name)).items()
    ]
    return lines or [f"job {name} has no presets"]


def values_in(parts: Mapping[str, Mapping[str, Any]]) -> Values:
    """The values of ``{part: {option: value}}`` by part and option.

    Example:
        >>> values_in({"executor": {"steps": 3}})
        {('executor', 'steps'): 3}
    """
    return {(part, option): value for part, options in parts.items() for option, value in options.items()}


class Shortcuts(TypedDict, total=False):
    """The options that have a short name in :func:`grandrounds.run` and on the command line; None is that of the job."""

    rounds: int | None
    image_size: int | None
    backbone: str | None
    seed: int | None


SHORT = {"rounds": "controller", "image_size": "problem", "backbone": "problem", "seed": "controller"}
"""Their parts."""


def short_options(**given: Unpack[Shortcuts]) -> Values:
    """The values of options by their short names.

    Raises:
        UsageError: if another option is among them.

    Example:
        >>> short_options(rounds=3, seed=None)
        {('controller', 'rounds'): 3}
    """
    for name in given.keys() - SHORT.keys():
        raise UsageError(f'there is no argument {name}; options of the job go into options={{"PART.{name}": ...}}')
    return {(SHORT[name], name): value for name, value in given.items() if value is not None}


def with_preset(job: Job, preset: str | None, values: Values = NO_VALUES) -> Job:
    """A copy of the job with the options of presets, and others set after them; FLARE lists it as ``JOB-PRESET``.

    Args:
        job: stays as it is.
        preset: the name of a preset, or several separated by commas; later ones win. None leaves the job's options.
        values: they win. Those that change an option of a preset are named in the record.

    Raises:
        ConfigurationError: if the job has no such preset (its presets are named), or an option does not exist.

    Example:
        >>> from grandrounds.deployment.jobs import load_job
        >>> job = with_preset(load_job("mdhfl"), "paper,rhfl", {("controller", "rounds"): 3})
        >>> job.name, job.value("controller", "weighting"), job.value("controller", "preset")
        ('mdhfl-paper-rhfl', 'ccr', 'paper + rhfl, but controller.rounds')
    """
    if preset is None:
        return job.with_values(values)
    names = [name.strip() for name in preset.split(",")]
    presets = presets_of(job)
    chosen = {key: value for name in names for key, value in values_in(_named(job, presets, name)).items()}
    changed = job.with_values({**chosen, **values})
    changes = [".".join(key) for key in chosen if key != RUN_NAME_OPTION and changed.value(*key) != chosen[key]]
    label = " + ".join(names)
    record = f"{label}, but {', '.join(sorted(changes))}" if changes else label
    meta = {**job.meta, "name": "-".join([job.name, *names])}
    return replace(changed.with_values({("controller", "preset"): record}), meta=meta)


def configured_job(
    name: str | Path | None, preset: str | None, values: Values, problem: Mapping[str, Any], own_images: bool = False
) -> Job:
    """Load a job and set its options.

    Where no method is named it is ``ridge``, with the preset ``recommended`` by default.

    For images of one's own the preset ``recommended`` is the default, where the job has it: a small network from random
    weights, which jobs have for synthetic images, learns little from them. With a network of one's choice, or a size of the
    images that is too small for the preset's network, there is no default preset.

    Args:
        name: of a job, or its folder; None for ``ridge``.
        preset: names of presets, see :func:`with_preset`.
        values: they win.
        problem: options of the problem that follow from the data; presets and values win over these.
        own_images: whether the data are images of one's own.

    Raises:
        ConfigurationError: if there is no such job, preset or option.
    """
    job = load_job(FIRST_JOB if name is None else name)
    require_type(preset, str | None, "preset")
    if (own_images or name is None) and preset is None and _fits_recommended(job, values):
        preset = RECOMMENDED
    plain = job.with_values(values_in({"problem": problem}))
    made = with_preset(plain, preset, values)
    if preset is None:
        return made
    alike = weighing_alike(made, values)
    off = {
        (part, option): alike.value(part, option)
        for part, option in _BY_CLASS
        if option in made.options(part) and alike.value(part, option) != made.value(part, option)
    }
    return with_preset(plain, preset, {**off, **values})  # the record names what differs from the preset


def weighing_alike(job: Job, kept: Collection[tuple[str, str]] = ()) -> Job:
    """A job as it is, or where images have no class by which they could be weighed, with one weight for all.

    Args:
        job: with options of a preset.
        kept: options that stay as they are, because a user has set them.
    """
    off = {(part, option): 0.0 for part, option in _BY_CLASS if option in job.options(part)}
    for made in (job, job.with_values({key: value for key, value in off.items() if key not in kept})):
        with suppress(ConfigurationError):
            made.checked()
            return made
    return job


def _fits_recommended(job: Job, values: Values) -> bool:
    parts = presets_of(job).get(RECOMMENDED)
    if parts is None or ("problem", "backbone") in values:
        return False
    backbone = parts.get("problem", {}).get("backbone", job.value("problem", "backbone"))
    side = values.get(("problem", "image_size"))
    if not isinstance(side, int):
        return True
    from grandrounds.models.registry import minimum_image_size  # with torch, which most commands do not need

    return side >= minimum_image_size(str(backbone))


def _named(job: Job, presets: Mapping[str, Any], name: str) -> dict[str, dict[str, Any]]:
    if name not in presets:
        hint = did_you_mean(name, presets)
        raise ConfigurationError(
            f"job {job.name} has no preset {name!r}{hint} (presets: {', '.join(sorted(presets)) or 'none'})"
        )
    return dict(presets[name])
