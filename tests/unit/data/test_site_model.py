"""A site's choice of a network is read, and what is wrong with it is named by file and key."""

import json

import pytest

from grandrounds.data.site import read_site_config
from grandrounds.errors import ConfigurationError


@pytest.fixture
def read(tmp_path):
    """Read a configuration with this entry ``models`` and a data set ``skin``."""
    (tmp_path / "skin.csv").write_text("image,label,split,patient\n")

    def read_with(models):
        path = tmp_path / "grandrounds.json"
        skin = {"manifest": "skin.csv", "root": "."}
        path.write_text(json.dumps({"datasets": {"skin": skin, "blood": skin}, "models": models}))
        return read_site_config(path)

    return read_with


def test_the_choice_belongs_to_its_data_set(read):
    found = read({"skin": {"backbone": "resnet10", "norm": "group", "dropout": None}})
    assert found["skin"].model.changes == {"backbone": "resnet10", "norm": "group", "dropout": None}
    assert found["skin"].model.where.endswith("grandrounds.json: models.skin")
    assert found["blood"].model is None


def test_weights_are_looked_for_beside_the_file(read, tmp_path):
    (tmp_path / "own.pt").touch()
    found = read({"skin": {"weights": "own.pt"}, "blood": {"weights": "imagenet"}})
    assert found["skin"].model.changes == {"weights": str(tmp_path / "own.pt")}
    assert found["blood"].model.changes == {"weights": "imagenet"}


@pytest.mark.parametrize(
    ("models", "message"),
    [
        ([], r"grandrounds\.json: models must be an object of models by data set, got \[\]"),
        ({"skim": {}}, r"models\.skim: there is no such data set in this file \(there are: blood, skin\)"),
        ({"skin": "resnet10"}, r"models\.skin must be an object with backbone, dropout, norm, weights, got 'resnet10'"),
        ({"skin": {"backbon": "x"}}, r"models\.skin: unknown key 'backbon'; expected backbone, dropout, norm, weights"),
        ({"skin": {"backbone": 10}}, r"models\.skin\.backbone must be a name, got 10"),
        ({"skin": {"norm": "layer"}}, r"models\.skin\.norm must be batch or group, got 'layer'"),
        ({"skin": {"dropout": 1}}, r"models\.skin\.dropout must be a number from 0 to below 1, or null, got 1"),
        (
            {"skin": {"weights": "lost.pt"}},
            r"models\.skin\.weights must be imagenet or the path of a file.* got 'lost\.pt'",
        ),
        ({"skin": {"weights": 1}}, r"models\.skin\.weights must be .* got 1"),
        ({"skin": {"dropout": True}}, r"models\.skin\.dropout must be a number .* got True"),
    ],
)
def test_what_is_wrong_is_named(read, models, message):
    with pytest.raises(ConfigurationError, match=message):
        read(models)
