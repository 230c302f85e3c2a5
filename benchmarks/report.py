"""Write the tables and figures of benchmarks into their pages, from the committed results.

    python benchmarks/report.py fedirm_ham10000 wire
    python benchmarks/report.py                        # all

A page ``benchmarks/NAME/README.md`` has sections between ``<!-- SECTION: begin -->`` and ``<!-- SECTION: end -->``. The
section ``results`` comes from ``parts`` in the ``report.py`` of an experiment. Any other section comes from ``tables`` in
the measurement script of that name (or in ``run.py``), with the result ``SECTION.json``, and a figure from its ``drawing``
if it has one.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

if not __package__:  # run as a script
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    sys.modules["benchmarks.report"] = sys.modules[__name__]
from matplotlib.figure import Figure

from benchmarks.tables import replace_section
from grandrounds.files import replacing

BENCHMARKS = Path(__file__).resolve().parent
EXPERIMENT = "results"


class Drawing(NamedTuple):
    """A figure of a page: its file's name without ending, and its title."""

    name: str
    title: str
    figure: Figure


Part = str | Drawing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="folders of benchmarks; default: all")
    parser.add_argument("--results", type=Path, help="folder of other results, of one experiment")
    parser.add_argument("--out", type=Path, help="folder for the page and its figures; default: the benchmark's")
    arguments = parser.parse_args()
    for name in arguments.names or sorted(path.parent.name for path in BENCHMARKS.glob("*/README.md")):
        write(name, arguments.results, arguments.out or BENCHMARKS / name)


def write(name: str, results: Path | None, out: Path) -> None:
    text = (BENCHMARKS / name / "README.md").read_text(encoding="utf-8")
    for section in re.findall(r"<!-- (\w+): begin -->", text):
        made = experiment_parts(name, results) if section == EXPERIMENT else measurement_parts(name, section)
        content = "\n\n".join(_saved(part, out) for part in made) or "There are no results yet."
        text = replace_section(text, section, content)
    out.mkdir(parents=True, exist_ok=True)
    with replacing(out / "README.md") as stream:
        stream.write(text.encode())


def experiment_parts(name: str, folder: Path | None) -> Iterator[Part]:
    """What an experiment's report says of its results, and the origins of rows that were not all computed alike."""
    from benchmarks.origins import MIXED, mixed_table
    from benchmarks.results import Results

    results = Results(name, folder)
    if results:
        yield from import_module(f"benchmarks.{results.configuration.get('experiment', name)}.report").parts(results)
        if results.mixed:
            yield MIXED
            yield mixed_table(results.mixed, results.configuration["methods"])


def measurement_parts(name: str, section: str) -> Iterator[Part]:
    """The tables of a measurement, its figure, and the circumstances."""
    path = BENCHMARKS / name / f"{section}.json"
    if not path.is_file():
        yield "Not measured yet."
        return
    result = json.loads(path.read_text())
    script = section if (BENCHMARKS / name / f"{section}.py").is_file() else "run"
    module = import_module(f"benchmarks.{name}.{script}")
    yield module.tables(result)
    if draw := getattr(module, "drawing", None):
        yield Drawing(section, *draw(result))
    if getattr(module, "ON_A_MACHINE", True):
        yield circumstances(result)


def circumstances(result: dict[str, Any]) -> str:
    """Where and how something was measured, as far as the result has it."""
    if "machine" not in result:
        return "(CPU; machine and versions were not recorded)"
    machine, versions = result["machine"], result["versions"]
    found = [machine.get("processor", machine["system"]), f"{machine['cores']} cores"]
    found += ["one thread"] if result.get("threads") == 1 else []
    if "cores_of_others" in machine:
        found.append(f"{machine['cores_of_others']:g} cores of other programs")
    if "load_before" in machine:
        found.append(f"load {machine['load_before']:g} before and {machine['load_after']:g} after")
    libraries = {"torch": "torch", "nvflare": "FLARE"}
    found += [f"{title} {versions[name]}" for name, title in libraries.items() if name in versions]
    return f"({', '.join(found)})"


def _saved(part: Part, out: Path) -> str:
    if isinstance(part, str):
        return part
    (out / "figures").mkdir(parents=True, exist_ok=True)
    part.figure.savefig(out / "figures" / f"{part.name}.png")
    return f"![{part.title}](figures/{part.name}.png)"


if __name__ == "__main__":
    main()
