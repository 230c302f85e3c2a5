"""A problem is checked before anything is loaded, and travels as plain values."""

import json
from dataclasses import replace

import pytest

from grandrounds.errors import ConfigurationError
from grandrounds.models.registry import require_buildable
from grandrounds.protocol.problem import Problem

MINIMAL = {"dataset": "skin", "classes": ["naevus", "melanoma"]}


def test_it_survives_its_journey_as_json():
    problem = Problem.from_dict({**MINIMAL, "image_size": 96, "norm": "group", "dropout": 0.2, "weights": "w.pt"})
    assert Problem.from_dict(json.loads(json.dumps(problem.to_dict()))) == problem
    assert problem.classes == ("naevus", "melanoma")


def test_only_the_server_asks_for_pretrained_weights():
    problem = Problem.from_dict({**MINIMAL, "weights": "imagenet", "channels": 1})
    assert problem.model_spec(pretrained=True).weights == "imagenet"
    site = problem.model_spec(pretrained=False)
    assert problem.model_spec(pretrained=False) is site
    assert replace(problem, classes=list(problem.classes)).model_spec(pretrained=False) == site
    assert not site.load_weights
    assert not site.has_frozen
    assert (site.classes, site.channels, site.backbone) == (2, 1, "compact")


def checked(content):
    """As the controller reads it."""
    problem = Problem.from_dict(content)
    require_buildable(problem.model_spec(pretrained=False), problem.image_size)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image_sise": 64}, r"problem has no option 'image_sise'; did you mean image_size\? \(options: dataset, "),
        ({"zzz": 64}, r"problem has no option 'zzz' \(options: "),
        ({"dataset": ""}, "problem.dataset is missing"),
        ({"classes": []}, "problem.classes is missing"),
        ({"classes": ["a"]}, r"problem.classes must be at least two different names, got \['a'\]"),
        ({"classes": ["a", "a"]}, "problem.classes must be at least two different names"),
        ({"image_size": 31}, "problem.image_size must be at least 32 for backbone compact, got 31"),
        ({"backbone": "resnet18", "image_size": 63}, "at least 64 for backbone resnet18, got 63"),
        ({"backbone": "compakt"}, r"unknown backbone 'compakt': did you mean 'compact'\?"),
    ],
)
def test_values_that_do_not_fit_are_named(change, message):
    with pytest.raises(ConfigurationError, match=message):
        checked({**MINIMAL, **change})


def test_classes_given_as_one_word_are_refused():
    with pytest.raises(ConfigurationError, match=r"problem.classes .*got 'ab'"):
        Problem.from_dict({**MINIMAL, "classes": "ab"})
