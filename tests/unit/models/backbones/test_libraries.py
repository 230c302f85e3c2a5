"""Names of libraries' networks as the libraries print them."""

import pytest

from grandrounds.errors import ConfigurationError
from grandrounds.models.backbones.libraries import import_torchvision, library_backbone
from grandrounds.models.registry import build_model
from grandrounds.protocol.problem import ModelSpec


@pytest.fixture(autouse=True)
def timm():
    import_torchvision()  # timm imports it
    return pytest.importorskip("timm")


@pytest.mark.parametrize("tag", [".r160_in1k"])
def test_a_name_of_timm_with_the_tag_of_weights_is_the_network(tag):
    plain, tagged = (build_model(ModelSpec(f"timm:test_resnet{end}", 3), 0) for end in ("", tag))
    shapes = [{name: value.shape for name, value in network.state_dict().items()} for network in (plain, tagged)]
    assert shapes[0] == shapes[1]


def test_an_unknown_tag_is_refused_with_near_names():
    with pytest.raises(ConfigurationError, match=r"did you mean timm:test_resnet"):
        library_backbone("timm:test_resnet.r999")
