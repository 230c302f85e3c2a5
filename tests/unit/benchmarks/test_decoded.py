"""The committed digests of decoded pixels are those of this decoder, and each difference has a reason."""

import json
import os
from pathlib import Path

import pytest

from benchmarks.decoded.run import FOLDER, collection_rows, packaged_files

BEFORE, AFTER, RULES = (json.loads((FOLDER / f"{name}.json").read_text()) for name in ("before", "after", "rules"))


def test_each_changed_image_has_a_rule_and_no_other_image_has_one():
    changed = {
        name for kind in ("collections", "files") for name, found in AFTER[kind].items() if found != BEFORE[kind][name]
    }
    assert changed == set(RULES)
    assert [set(AFTER[kind]) for kind in ("collections", "files")] == [
        set(BEFORE[kind]) for kind in ("collections", "files")
    ]


def test_pydicoms_files_are_decoded_as_the_committed_digests_say():
    found = dict(packaged_files())
    assert found == {name: row for name, row in AFTER["files"].items() if name.startswith("pydicom/")}


@pytest.mark.realdata
@pytest.mark.parametrize("collection", ["dicom/rsna_ich_20.zip", "dicom/pydicom_samples.zip"])
def test_real_slices_are_decoded_as_the_committed_digests_say(collection):
    root = Path(os.environ.get("GRANDROUNDS_DATA") or Path(__file__).parents[4] / "shared" / "data")
    if not (root / collection).exists():
        pytest.skip(f"{root / collection} is not there; set GRANDROUNDS_DATA to the folder of real images")
    found = collection_rows(root, collection)
    assert found == {name: row for name, row in AFTER["files"].items() if name.startswith(collection)}
