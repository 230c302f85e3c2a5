"""The reference of all options, generated from their annotations.

python -m grandrounds.deployment.option_reference > docs/reference/options.md
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from dataclasses import MISSING

from grandrounds.deployment.jobs import PARTS, Job, class_of, job_names, load_job
from grandrounds.options import OptionInfo, describe, groups_of
from grandrounds.protocol.problem import Problem

INTRODUCTION = """# Options

This page is generated from the package by `python -m grandrounds.deployment.option_reference`; do not edit it.

Set an option with `--set PART.OPTION=VALUE`, or edit the job's JSON. The default is that of the component. A job states
all its options, and some differ from the default: `grandrounds jobs JOB` shows a job's values and its presets.
"""


def options_of(job: Job, part: str) -> list[OptionInfo]:
    """All options of a part of a job, in the order of the job's own file; the problem is a part of its own."""
    found = {entry.name: entry for group in _groups(job, part).values() for entry in describe(group)}
    found.pop("problem", None)
    order = {name: number for number, name in enumerate(job.options(part))}
    return sorted(found.values(), key=lambda entry: order.get(entry.name, len(order)))


def option_reference() -> str:
    """All options of all jobs as a Markdown page: a table for each group of options."""
    jobs = [load_job(name) for name in job_names()]
    sections = [INTRODUCTION]
    for part in reversed(PARTS):
        sections.append(f"## {part}\n")
        used: dict[type, list[str]] = {}
        for job in jobs:
            for group in _groups(job, part).values():
                used.setdefault(group, []).append(job.name)
        sections += [_section(group, names, len(jobs)) for group, names in sorted(used.items(), key=_by_use)]
    return "\n".join(sections)


def _by_use(used: tuple[type, list[str]]) -> tuple[int, str, str]:
    group, jobs = used
    return -len(jobs), group.__module__, group.__name__


def _groups(job: Job, part: str) -> Mapping[str, type]:
    if part == "problem":
        return {"problem": Problem}
    return groups_of(class_of((job.executor if part == "executor" else job.controller)["path"]))


def _section(group: type, jobs: list[str], count: int) -> str:
    text = (inspect.getdoc(group) or "").partition("\n\n")[0].replace("\n", " ").replace("``", "`")
    who = "all jobs" if len(jobs) == count else ", ".join(f"`{name}`" for name in jobs)
    lines = [f"### {group.__name__}\n", f"{text} Used by {who}.\n"]
    lines += ["| option | value | default | meaning |", "|---|---|---|---|"]
    for entry in describe(group):
        default = "required" if entry.default is MISSING else f"`{json.dumps(entry.default)}`"
        lines.append(f"| `{entry.name}` | {_cell(entry.allowed)} | {default} | {_cell(entry.meaning)} |")
    return "\n".join([*lines, ""])


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    print(option_reference(), end="")
