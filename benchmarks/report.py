"""Fill the tables of ``docs/performance.md`` from the committed results; what was not measured yet says so.

python -m benchmarks.report
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.data.run import tables as data_tables
from benchmarks.local_step.compiler import table as compiler_table
from benchmarks.local_step.table import table as step_table
from benchmarks.rounds.flower import table as flower_table
from benchmarks.rounds.provisioned import table as provisioned_table
from benchmarks.rounds.run import tables as round_tables
from benchmarks.rounds.simulator import table as simulator_table
from benchmarks.scaling.run import table as scaling_table
from benchmarks.server.run import tables as server_tables
from benchmarks.wire.precision import table as precision_table
from benchmarks.wire.run import table as wire_table
from benchmarks.wire.slow_link import table as slow_link_table
from grandrounds.evaluation.tables import replace_section

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "performance.md"
PARTS: Mapping[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "rounds": ("rounds/result.json", round_tables),
    "simulator": ("rounds/simulator.json", simulator_table),
    "provisioned": ("rounds/provisioned.json", provisioned_table),
    "flower": ("rounds/flower.json", flower_table),
    "scaling": ("scaling/result.json", scaling_table),
    "server": ("server/result.json", server_tables),
    "data": ("data/result.json", data_tables),
    "compiler": ("local_step/compiler.json", compiler_table),
    "wire": ("wire/result.json", wire_table),
    "precision": ("wire/precision.json", precision_table),
    "slow_link": ("wire/slow_link.json", slow_link_table),
}


def main() -> None:
    """Write all tables into the page."""
    text = PAGE.read_text()
    for name, (path, table) in PARTS.items():
        text = replace_section(text, *_markers(name), _content(HERE / path, table))
    text = replace_section(text, *_markers("local_step"), step_table())
    PAGE.write_text(text)


def _markers(name: str) -> tuple[str, str]:
    return f"<!-- {name}: begin -->", f"<!-- {name}: end -->"


def _content(path: Path, table: Callable[[dict[str, Any]], str]) -> str:
    if not path.is_file():
        return "Not measured yet."
    result = json.loads(path.read_text())
    machine, versions = result["machine"], result["versions"]
    load = f"load {machine['load_before']:g} before and {machine['load_after']:g} after"
    where = f"{machine['processor']}, {machine['cores']} cores, one thread, {load}, torch {versions['torch']}"
    return f"{table(result)}\n\n({where}, FLARE {versions['nvflare']})"


if __name__ == "__main__":
    main()
