"""An option that was renamed: jobs and records that state its former name are read."""

import json
from dataclasses import dataclass
from typing import Annotated

import pytest

from benchmarks.result_runs import read_result
from grandrounds import option_keys
from grandrounds.deployment.jobs import JOB_PARTS, Job, job_names, load_job
from grandrounds.option_keys import FORMER_NAMES, former_option_names
from grandrounds.options import Configurable, Min, Options, Was, take_options


@dataclass(frozen=True)
class PeerOptions(Options):
    peers: Annotated[int, "number of peers", Min(0), Was(("peer_count", "neighbours"))] = 2


class Controller(Configurable):
    peer_options: PeerOptions

    def __init__(self, *, problem=None, **options):
        self.take_groups(options)


class Executor(Configurable):
    peer_options: PeerOptions

    def __init__(self, **options):
        self.take_groups(options)


def job(controller, executor):
    """As its files state it."""
    path = f"{__name__}."
    problem = {"dataset": "phantom", "classes": ["round", "ring"]}
    workflow = {"id": "controller", "path": f"{path}Controller", "args": {"problem": problem, **controller}}
    entry = {"tasks": ["*"], "executor": {"path": f"{path}Executor", "args": executor}}
    return Job({"name": "renamed"}, {"workflows": [workflow]}, {"executors": [entry]})


@pytest.mark.parametrize("name", ["peer_count", "neighbours", "peers"])
def test_a_group_takes_an_option_by_every_name(name):
    assert take_options(PeerOptions, {name: 5, "steps": 3}) == (PeerOptions(peers=5), {"steps": 3})
    assert Executor(**{name: 5}).peer_options.peers == 5


def test_todays_name_wins_over_a_former_one():
    assert take_options(PeerOptions, {"peer_count": 5, "peers": 3})[0].peers == 3


def test_a_job_under_a_former_name_states_todays():
    full = job({"peer_count": 4}, {"neighbours": 7}).in_full()
    assert full.controller["args"].keys() == {"problem", "peers"}
    assert full.value("controller", "peers") == 4
    assert full.options("executor") == {"peers": 7}


def test_a_committed_result_under_a_former_name_is_read(tmp_path, monkeypatch):
    renamed = {
        "controller": {"peer_count": "peers"},
        "executor": {"local_steps": "steps"},
        "problem": {"size": "image_size"},
    }
    for part, names in renamed.items():
        monkeypatch.setitem(option_keys.FORMER_NAMES, part, names)
    options = {
        "controller": {"peer_count": 3, "problem": {"classes": ["round", "ring"], "size": 32}},
        "executor": {"local_steps": 26},
    }
    result = {
        "method": "fedperl",
        "seed": 1,
        "options": options,
        "predictions": {"common": {"site-1": {"confusion": [[3, 1], [0, 4]]}}},
        "test": {"site-1": 8},
        "bytes": {},
    }
    path = tmp_path / "result.json"
    path.write_text(json.dumps(result))
    run = read_result(path, "old")
    assert run.log.configuration["peers"] == 3
    assert run.log.configuration["problem"]["image_size"] == 32
    assert run.origin.options == {"steps": 26}


def test_the_names_for_records_are_those_of_the_annotations():
    stated = {part: {} for part in JOB_PARTS}
    for name in job_names():
        for part in JOB_PARTS:
            stated[part] |= former_option_names(load_job(name).component(part))
    assert stated == FORMER_NAMES
