"""Every data set keeps the same rules: what is missing is named with its place, and nothing half-made is left."""

import re

import pytest

from grandrounds.data.families import DATASETS, OWN_SOURCES
from grandrounds.data.partition.schemes import make_partition
from grandrounds.errors import ConfigurationError, DataError


@pytest.mark.parametrize("name", sorted(DATASETS))
def test_a_folder_without_the_data_set_is_refused_with_what_was_expected_and_where(name, tmp_path):
    empty, out = tmp_path / "empty", tmp_path / "out"
    empty.mkdir()
    with pytest.raises(DataError, match=rf"{re.escape(str(empty))}.*(looked for|expected|missing)"):
        make_partition(name, empty, out)
    assert not out.exists()


@pytest.mark.parametrize("name", sorted({**DATASETS, **OWN_SOURCES}))
def test_an_option_of_another_data_set_is_refused_by_name(name, tmp_path):
    with pytest.raises(ConfigurationError, match="no_such_option"):
        make_partition(name, tmp_path, tmp_path / "out", no_such_option=1)
    assert not (tmp_path / "out").exists()
