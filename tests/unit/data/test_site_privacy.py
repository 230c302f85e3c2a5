"""A site's own floor is read from its description, and what is no floor is refused."""

import json
import re

import pytest

from grandrounds.data.site import min_support_from, read_site_config
from grandrounds.errors import ConfigurationError


@pytest.mark.parametrize(
    ("privacy", "message"),
    [
        ({"min_support": -1}, "x.min_support must be a whole number of patients, 0 or more, got -1"),
        ({"min_support": 2.5}, "x.min_support must be a whole number of patients, 0 or more, got 2.5"),
        ({"min_support": True}, "x.min_support must be a whole number of patients, 0 or more, got True"),
        ({"floor": 3}, "x: unknown key 'floor'; expected min_support"),
        ([10], "x must be an object with min_support, got [10]"),
    ],
)
def test_what_is_no_floor_is_refused(privacy, message):
    with pytest.raises(ConfigurationError, match=f"^{re.escape(message)}$"):
        min_support_from(privacy, "x")


@pytest.mark.parametrize(("privacy", "expected"), [({}, 0), ({"privacy": {"min_support": 7}}, 7)])
def test_the_floor_holds_for_every_data_set_of_the_site(tmp_path, privacy, expected):
    (tmp_path / "a.csv").touch()
    datasets = {name: {"manifest": "a.csv", "root": "."} for name in ("skin", "ich")}
    (tmp_path / "grandrounds.json").write_text(json.dumps({"datasets": datasets, **privacy}))
    found = read_site_config(tmp_path / "grandrounds.json")
    assert {name: location.min_support for name, location in found.items()} == {"skin": expected, "ich": expected}
