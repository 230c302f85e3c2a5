"""A site's network is the job's, the one that the job chooses for it, or its own choice, in this order of rank."""

import pytest

from grandrounds.data.site import ModelOverride
from grandrounds.errors import ConfigurationError
from grandrounds.federation.site.model import model_named
from grandrounds.federation.site.options import SiteOptions
from grandrounds.models.registry import chosen_intensities
from grandrounds.protocol.problem import Problem

PROBLEM = Problem("skin", ("a", "b", "c"), image_size=32, backbone="compact", weights="imagenet")
FILE = "/sites/site-1/grandrounds.json: models.skin"


def chosen(**changes):
    return ModelOverride(FILE, changes)


def spec(own=True, backbones=None, choice=None, problem=PROBLEM):
    options = SiteOptions(model="own" if own else "shared", backbones=backbones)
    return model_named(options, None, None).spec(problem, "site-1", choice)


def test_without_a_choice_it_is_the_problems():
    assert spec() is None
    assert spec(own=False) is None
    assert spec(backbones={"site-2": "resnet10"}) is None


def test_the_job_chooses_a_backbone_and_the_rest_stays():
    found = spec(backbones={"site-1": "resnet10"})
    assert (found.backbone, found.classes, found.channels, found.norm) == ("resnet10", 3, 3, "batch")
    assert found.weights is None, "trained weights are of another network"


def test_frozen_layers_of_another_backbone_have_its_own_weights_and_normalisation():
    options = {"backbone": "efficientnet_lite0", "weights": "imagenet", "trainable": "head", "image_size": 64}
    problem = Problem("skin", ("a", "b", "c"), **options)
    found = spec(backbones={"site-1": "resnet18"}, problem=problem)
    assert (found.backbone, found.weights, found.trainable) == ("resnet18", "imagenet", "head")
    shared = problem.model_spec(pretrained=False)
    assert (chosen_intensities(shared), chosen_intensities(found)) == ("efficientnet_lite", "imagenet")


def test_the_sites_own_choice_overrides_the_jobs():
    found = spec(backbones={"site-1": "resnet10"}, choice=chosen(backbone="shufflenet", dropout=0.25))
    assert (found.backbone, found.norm, found.dropout) == ("shufflenet", "batch", 0.25)
    assert spec(backbones={"site-1": "resnet10"}, choice=chosen(norm="group")).backbone == "resnet10"


def test_a_choice_equal_to_the_problems_network_gives_no_own_spec():
    assert spec(own=False, choice=chosen(backbone="compact", norm="batch")) is None


def test_a_differing_model_is_refused_where_one_is_shared():
    message = (
        r"/sites/site-1/grandrounds\.json: models\.skin asks for resnet10 \(norm batch, dropout its own\), but all sites of "
        r"this job share one model, compact"
    )
    with pytest.raises(ConfigurationError, match=message):
        spec(own=False, choice=chosen(backbone="resnet10"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"backbone": "resnet11"}, "models.skin: unknown backbone 'resnet11': did you mean 'resnet"),
        (
            {"backbone": "resnet18"},
            r"models.skin: problem.image_size must be at least 64 for backbone resnet18, got 32; choose another",
        ),
    ],
)
def test_a_choice_that_does_not_fit_is_refused_by_file(changes, message):
    with pytest.raises(ConfigurationError, match=message):
        spec(choice=chosen(**changes))


def test_a_jobs_choice_that_does_not_fit_is_refused_by_option():
    with pytest.raises(ConfigurationError, match=r"executor\.backbones: site-1: problem.image_size.*least 64"):
        spec(backbones={"site-1": "resnet18"})


def test_a_table_of_backbones_is_checked_before_the_run():
    SiteOptions()
    SiteOptions(model="own", backbones={"site-1": "resnet10"})
    with pytest.raises(ConfigurationError, match="which needs model=own"):
        SiteOptions(backbones={"site-1": "resnet10"})
    with pytest.raises(ConfigurationError, match="backbones: site-2: unknown backbone 'resnet99'"):
        SiteOptions(model="own", backbones={"site-1": "resnet10", "site-2": "resnet99"})
