"""Who must be there: the server's file is read strictly, and a job can add to it and not waive it."""

import json

import pytest

from grandrounds.errors import ConfigurationError
from grandrounds.federation.server.sites import joined, read_roster, require_names


def test_a_server_without_the_file_asks_for_nobody(tmp_path):
    assert read_roster(tmp_path / "roster.json") == ()


def test_the_servers_sites_are_read(tmp_path):
    path = tmp_path / "roster.json"
    path.write_text(json.dumps({"mandatory_sites": ["hospital-b", "hospital-a"]}))
    assert read_roster(path) == ("hospital-b", "hospital-a")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "is not valid JSON"),
        ("[]", "must be a JSON object"),
        ('{"mandatory": ["a"]}', "'mandatory_sites' is missing"),
        ('{"mandatory_sites": ["a"], "least": 2}', "unknown key 'least'; expected mandatory_sites"),
        ('{"mandatory_sites": "a"}', "must be a list of different names"),
        ('{"mandatory_sites": ["a", "a"]}', "must be a list of different names"),
        ('{"mandatory_sites": [1]}', "must be a list of different names"),
    ],
)
def test_a_damaged_file_stops_the_run_and_is_named(tmp_path, text, reason):
    """Else a slip of the pen would waive what the consortium has agreed on."""
    path = tmp_path / "roster.json"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=f"roster.json.* {reason}"):
        read_roster(path)


def test_names_of_a_job_are_checked():
    with pytest.raises(ConfigurationError, match="mandatory_sites must be a list of different names of sites, got 'a'"):
        require_names("a", "mandatory_sites")


def test_a_job_adds_to_the_servers_sites():
    assert joined(("a",), ("b", "a")) == ("a", "b")
