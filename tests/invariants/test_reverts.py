"""Each repair of a hole, undone in a copy, turns a test red."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.invariants.reverts import OF_SUMS, REVERTS

MOST_SECONDS = 600
"""Of a run of tests; one that does not end has found nothing."""
REPOSITORY = Path(__file__).parents[2]
COPIED = ("custom", "tests", "provisioning")
OWN = (*COPIED, ".git", ".venv")
"""What a copy has for itself, or needs not; the rest is linked."""


@pytest.mark.parametrize("revert", REVERTS, ids=lambda revert: revert.attack)
def test_what_a_revert_undoes_is_there_once_and_so_are_its_tests(revert):
    assert (REPOSITORY / revert.place).read_text().count(revert.repaired) == 1
    for test in revert.tests:
        path, _, name = test.partition("::")
        assert f"def {name}" in (REPOSITORY / path).read_text()


def test_the_page_of_attempts_has_each_attack_on_sums_with_its_tests():
    page = (REPOSITORY / "benchmarks" / "attempts" / "README.md").read_text()
    rows = {row.split(" | ")[0].strip("| "): row for row in page.splitlines() if row.startswith("| ")}
    for revert in OF_SUMS:
        assert all(f"`{test.rpartition('::')[2].rpartition('/')[2]}`" in rows[revert.attack] for test in revert.tests)


def undo(revert, folder):
    """A copy of the repository in which a repair is undone."""
    for name in COPIED:
        shutil.copytree(REPOSITORY / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in REPOSITORY.iterdir():
        if path.name not in OWN:
            (folder / path.name).symlink_to(path)
    place = folder / revert.place
    place.write_text(place.read_text().replace(revert.repaired, revert.undone))


@pytest.mark.fuzz
@pytest.mark.parametrize("revert", REVERTS, ids=lambda revert: revert.attack)
def test_a_repair_that_is_undone_turns_a_test_red(revert, tmp_path):
    undo(revert, tmp_path)
    call = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *revert.tests]
    done = subprocess.run(
        call, cwd=tmp_path, env=os.environ, capture_output=True, text=True, check=False, timeout=MOST_SECONDS
    )
    red = re.findall(r"^FAILED (\S+)", done.stdout, flags=re.MULTILINE)
    print(f"{revert.attack}: {', '.join(red) or 'nothing'}")
    assert done.returncode == 1, done.stdout[-2000:]
    assert red
