"""How many functions a run passes from ``api.reports.report`` to the finished page, and under how many names.

A function counts if it belongs to the API or to reporting and one of its arguments is the run: a run, what a report says
about it, a method of several, the report, or a sequence or mapping of these. A name is a local name of a function that is
bound to one of them. What takes a part of a run alone (its log, its tests, its scores) does not count: it cannot know more.
The first count of this walk, by another tool that followed a parameter through calls, was 132 functions and 193 names; by
this count the same commit had 98 and 130.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import grandrounds
from grandrounds.api.reports import report
from grandrounds.reporting.model import Method, Report, ReportedRun
from grandrounds.reporting.run import ReadRun

ROOT = Path(grandrounds.__file__).parent
PLACES = tuple(str(ROOT / name) for name in ("api", "reporting"))
WHOLE = (ReadRun, ReportedRun, Method, Report)
MAX_FUNCTIONS, MAX_NAMES = 60, 80


def is_run(value: Any) -> bool:
    """Whether a value is a run, or holds runs."""
    if isinstance(value, WHOLE):
        return True
    if isinstance(value, Mapping):
        return any(is_run(one) for one in list(value.values())[:3])
    return isinstance(value, Sequence) and not isinstance(value, str | bytes) and any(map(is_run, value[:3]))


@contextmanager
def walking() -> Iterator[tuple[set[str], set[tuple[str, str]]]]:
    """Collect the functions that are given the run, and the names that it has there."""
    functions: set[str] = set()
    names: set[tuple[str, str]] = set()

    def follow(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event not in ("call", "return") or code.co_name.startswith("<") or not code.co_filename.startswith(PLACES):
            return
        place = f"{code.co_filename}:{code.co_qualname}"
        bound = {name for name, value in list(frame.f_locals.items()) if is_run(value)}
        if event == "call" and bound:
            functions.add(place)
        elif event == "return":
            names.update((place, name) for name in bound)

    sys.setprofile(follow)
    try:
        yield functions, names
    finally:
        sys.setprofile(None)


def test_a_run_passes_few_functions_and_names_on_its_way_to_the_page(make, tmp_path):
    done = make("classes")
    with walking() as (functions, names):
        report({"first": done.workspace, "second": done.workspace}, tmp_path, progress=False)
    assert 10 < len(functions) <= MAX_FUNCTIONS, sorted(functions)
    assert len(names) <= MAX_NAMES, sorted(names)
