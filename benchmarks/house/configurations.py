"""What every job states with every preset, and pair of presets, once it is loaded: whether a change has changed an option.

PYTHONPATH=../before/custom python -m benchmarks.house.configurations --out before.json
python -m benchmarks.house.configurations --out after.json
python -m benchmarks.house.configurations compare before.json after.json

Every engine, the simulator, a kit and a submission get a job as it is written from this.
"""

from __future__ import annotations

import argparse
import json
import sys
from itertools import permutations
from pathlib import Path
from typing import Any

from grandrounds.deployment.jobs import Job, job_names, load_job
from grandrounds.deployment.presets import configured_job, presets_of, with_preset
from grandrounds.errors import GrandRoundsError

Flat = dict[str, Any]


def main() -> None:
    if sys.argv[1:2] == ["compare"]:
        raise SystemExit(compared(*(json.loads(Path(path).read_text()) for path in sys.argv[2:4])))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the configurations")
    arguments = parser.parse_args()
    arguments.out.write_text(json.dumps(configurations(), indent=1) + "\n")


def configurations() -> dict[str, Flat]:
    """By job, presets and whether the images are one's own, every value that the job states."""
    found = {}
    for name in job_names():
        job = load_job(name)
        presets = list(presets_of(job))
        found[name] = flat(job)
        for chosen in ([preset] for preset in presets), permutations(presets, 2):
            found |= {f"{name}/{','.join(each)}": flat(with_preset(job, ",".join(each))) for each in chosen}
        for preset in (None, *presets):
            found[f"{name}/{preset}, own images"] = _of_own_images(name, preset)
    return found


def _of_own_images(name: str, preset: str | None) -> Flat:
    try:
        return flat(configured_job(name, preset, {}, {}, own_images=True))
    except GrandRoundsError as error:
        return {"refused": str(error)}


def flat(job: Job) -> Flat:
    """All values of a job's three files, by path."""
    return dict(_flat({"meta": job.meta, "server": job.server, "client": job.client}, ""))


def _flat(content: Any, path: str) -> list[tuple[str, Any]]:
    if (
        not isinstance(content, dict | list)
        or not content
        or (isinstance(content, list) and not isinstance(content[0], dict))
    ):
        return [(path, list(content) if isinstance(content, tuple) else content)]
    entries = content.items() if isinstance(content, dict) else enumerate(content)
    return [pair for key, value in entries for pair in _flat(value, f"{path}.{key}".lstrip("."))]


def compared(before: dict[str, Flat], after: dict[str, Flat]) -> int:
    """Print the jobs, options and values that differ; how many values of both differ."""
    for name in sorted(before.keys() ^ after.keys()):
        print(f"{name}: only {'before' if name in before else 'after'}")
    both = sorted(before.keys() & after.keys())
    alone = {path: side for name in both for side, own, other in (("before", before, after), ("after", after, before))
             for path in own[name].keys() - other[name].keys()}  # fmt: skip
    for path, side in sorted(alone.items()):
        print(f"{path}: only {side}")
    changed = [(name, path) for name in both for path in before[name].keys() & after[name].keys()
               if before[name][path] != after[name][path]]  # fmt: skip
    for name, path in changed:
        print(f"{name}: {path} was {before[name][path]!r}, is {after[name][path]!r}")
    print(f"{len(both)} configurations of both, {len(changed)} values differ")
    return len(changed)


if __name__ == "__main__":
    main()
