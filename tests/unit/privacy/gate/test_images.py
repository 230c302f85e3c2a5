"""An image has one budget: two data sets of a site share none, whatever they and their files are called."""

import pytest

from grandrounds.errors import ConfigurationError
from grandrounds.privacy.gate.images import require_own_images
from grandrounds.privacy.gate.scored import count_scored
from grandrounds.privacy.ledger.entries import DatasetIdentity


def images(root, contents):
    root.mkdir()
    for number, content in enumerate(contents):
        (root / f"{number}.png").write_bytes(content)
    return root, [f"{number}.png" for number in range(len(contents))]


def test_one_common_image_under_another_name_is_refused(tmp_path):
    skin = images(tmp_path / "skin", [b"a", b"b", b"c"])
    copy = images(tmp_path / "copy", [b"x", b"c", b"y"])
    require_own_images(tmp_path / "privacy", DatasetIdentity("skin", "1" * 64), *skin)
    with pytest.raises(ConfigurationError, match="1 images of data set 'new' are also in 'skin'"):
        require_own_images(tmp_path / "privacy", DatasetIdentity("new", "2" * 64), *copy)
    require_own_images(tmp_path / "privacy", DatasetIdentity("skin", "2" * 64), *copy)  # grown under its own name


def test_scores_are_counted_by_job(tmp_path):
    assert [count_scored(tmp_path, job) for job in ("a", "a", "b", "a")] == [1, 2, 1, 3]
