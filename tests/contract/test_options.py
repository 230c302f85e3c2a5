"""Every option of a job, data set or network is checked against its annotation; an error names it and what was expected."""

import json
import math
from dataclasses import MISSING, fields
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest

from grandrounds.data.families import DATASETS, OWN_SOURCES
from grandrounds.deployment.jobs import JOBS, job_names
from grandrounds.errors import ConfigurationError
from grandrounds.options import Options, annotations_of, groups_of
from grandrounds.privacy.mechanisms.record_level import RecordLevelOptions
from grandrounds.protocol.problem import ModelSpec, Problem


def components():
    """The controllers and executors that the jobs' files name."""
    for name in job_names():
        for path in (JOBS / name / "app" / "config").glob("*.json"):
            content = json.loads(path.read_text())
            entries = [*content.get("workflows", []), *(one["executor"] for one in content.get("executors", []))]
            for entry in entries:
                module, _, kind = entry["path"].rpartition(".")
                if module.startswith("grandrounds."):
                    yield getattr(import_module(module), kind)


OTHERS = {Problem, ModelSpec, RecordLevelOptions, *DATASETS.values(), *OWN_SOURCES.values()}
GROUPS = sorted(
    OTHERS | {group for kind in components() for group in groups_of(kind).values()}, key=lambda group: group.__name__
)


def choices(annotation: Any) -> list[Any]:
    """The members of a union, or the type itself."""
    return (
        list(get_args(annotation)) if get_origin(annotation) not in (None, Literal, list, tuple, dict) else [annotation]
    )


def wrong_values(annotation: Any, bounds: Any) -> list[Any]:
    """Values that the annotation excludes: of another type, no choice, not finite, and beyond each bound."""
    if annotation is Any:
        return []
    kinds = choices(annotation)
    wrong = [] if str in kinds else ["no such choice"]
    if float in kinds:
        wrong += [math.nan, math.inf] if bounds is not None else []
    elif int in kinds:
        wrong.append(2.5)
    if bounds is not None and {int, float} & {*kinds}:
        step = 1 if int in kinds and float not in kinds else 0.01
        if math.isfinite(bounds.minimum):
            wrong.append(type(step)(bounds.minimum) - (0 if bounds.open_minimum else step))
        if math.isfinite(bounds.maximum):
            wrong.append(type(step)(bounds.maximum) + (0 if bounds.open_maximum else step))
    return wrong


def defaults(group: type[Options]) -> dict[str, Any]:
    """Values for the options that have no default."""
    made = {int: 2, float: 0.5, str: "text", dict: {}, bool: True, tuple: ("a", "b"), list: ["a", "b"], Path: Path("x")}
    known = annotations_of(group)
    required = [field.name for field in fields(group) if field.default is field.default_factory is MISSING]
    return {name: made[get_origin(known[name].type) or known[name].type] for name in required}


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.__name__)
def test_a_value_that_an_annotation_excludes_is_refused_by_the_options_name(group):
    for name, known in annotations_of(group).items():
        for value in wrong_values(known.type, known.bounds):
            with pytest.raises(ConfigurationError, match=rf"^{group.prefix}{name} must be .*, got "):
                group(**defaults(group) | {name: value})


def test_the_jobs_have_options_of_each_kind_to_be_wrong():
    """Otherwise the test above would show little."""
    found = [
        len(wrong_values(known.type, known.bounds)) for group in GROUPS for known in annotations_of(group).values()
    ]
    assert len(found) > 150
    assert sum(found) > 2 * len(found)
