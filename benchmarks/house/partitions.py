"""Digests of the partitions of all experiments: whether a change of the code divides a data set in another way.

python -m benchmarks.house.partitions --out after.json
python -m benchmarks.house.weights compare before.json after.json

For each setting the partition of its first seed is made from the data sets of ``$GRANDROUNDS_DATA``.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from benchmarks.experiment import BENCHMARKS, DATA, Experiment, Row, experiment_class
from benchmarks.house.weights import Digests, digest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the digests")
    arguments = parser.parse_args()
    found: dict[str, Digests] = {}
    for path in sorted(BENCHMARKS.glob("*/configuration.json")):
        with tempfile.TemporaryDirectory() as workspace:
            found |= digests_of(path.parent.name, Path(workspace))
        arguments.out.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


def digests_of(name: str, workspace: Path) -> dict[str, Digests]:
    """The digests of an experiment's partitions by setting; partitions of the same choices are made once."""
    kind, found, made = experiment_class(name), dict[str, Digests](), dict[Path, Digests]()
    experiment = kind(name, workspace=workspace)
    experiment.root = DATA / experiment.configuration["data"]
    for row in experiment.rows():
        setting = f"{name}/{row.setting}"
        if setting not in found:
            folder = experiment.partition_folder(row)
            if folder not in made:
                made[folder] = _digests(experiment, row)
            found[setting] = made[folder]
            print(setting, found[setting], flush=True)
    return found


def _digests(experiment: Experiment, row: Row) -> Digests:
    try:
        folder, _ = experiment.partition(row)
    except Exception as error:  # options of an earlier version are refused before and after a change
        return {"error": f"{type(error).__name__}: {error}"[:300]}
    files = sorted(folder.rglob("manifest.csv"))
    return {"manifests": digest(f"{path.relative_to(folder)}\n{path.read_text()}" for path in files)}


if __name__ == "__main__":
    main()
