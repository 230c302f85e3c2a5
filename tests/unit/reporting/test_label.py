"""Runs have different names, seeds of one method are one method, and vocabularies must agree."""

from pathlib import Path

import pytest

from grandrounds.errors import ConfigurationError
from grandrounds.reporting.label import methods_of, names_of, require_one_vocabulary, split_argument
from grandrounds.reporting.runs import read_run

from .conftest import configured


def test_a_name_in_front_of_the_path():
    assert split_argument("two peers=runs/a") == ("two peers", Path("runs/a"))
    assert split_argument("runs/a") == (None, Path("runs/a"))
    assert split_argument("=runs/a") == (None, Path("=runs/a"))


def test_two_runs_of_one_name_are_refused():
    with pytest.raises(ConfigurationError, match="two runs are called 'x'; name them: NAME=RUN"):
        names_of([("x", Path("a")), ("x", Path("b"))])


def test_runs_that_differ_in_their_seed_alone_are_one_method(make_run):
    paths = {f"fedperl_seed_{seed}": make_run(f"run-{seed}", configuration=configured(seed=seed)) for seed in (1, 2)}
    paths["other"] = make_run("other", configuration=configured(peers=3, seed=3))
    runs = [read_run(path, name) for name, path in paths.items()]
    found = methods_of(runs)
    assert {method: [run.seed for run in members] for method, members in found.items()} == {
        "fedperl": [1, 2],
        "other": [3],
    }


def test_the_same_seed_twice_is_no_repetition(make_run):
    runs = [read_run(make_run(name), name) for name in ("a", "b")]
    assert list(methods_of(runs)) == ["a", "b"]


def test_different_vocabularies_cannot_be_compared(make_run):
    problem = {"dataset": "skin", "classes": ["melanoma", "nevus", "other"]}
    runs = [
        read_run(make_run("a"), "a"),
        read_run(make_run("b", sites=(), configuration=configured(problem=problem)), "b"),
    ]
    with pytest.raises(ConfigurationError, match="a and b have different classes"):
        require_one_vocabulary(runs)
