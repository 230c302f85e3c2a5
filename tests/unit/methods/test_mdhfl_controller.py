import pytest
import torch

from grandrounds.deployment.jobs import load_job
from grandrounds.errors import CheckpointError, ConfigurationError
from grandrounds.methods.mdhfl.contributions import RowSum
from grandrounds.methods.mdhfl.controller import MutualController
from grandrounds.methods.mdhfl.options import ExchangeOptions


def controller(**options):
    return MutualController(**{**load_job("mdhfl").options("controller"), **options})


def told(weights, **options):
    """What sites get of a sum with these weights."""
    server = controller(**options)
    rows = torch.full((2, 4), 0.25 * sum(weights.values()))
    server._sum = RowSum(rows, dict.fromkeys(weights, 1), weights)
    return server.payload_for("a").parts, server.round_notes().get("withheld", False)


def test_a_site_without_weight_hides_nobody():
    # The second weight alone would be the rows of b, as they are.
    parts, withheld = told({"a": 0.5, "b": 0.5, "c": 0.0}, least_contributors=3, weighting="eccr")
    assert not parts
    assert withheld
    parts, withheld = told({"a": 0.5, "b": 0.25, "c": 0.25}, least_contributors=3, weighting="eccr")
    assert torch.equal(parts["rows"]["mean"], torch.full((2, 4), 0.25))
    assert not withheld


def test_fewer_sites_per_round_than_contributors_are_refused_unless_older_rows_count():
    with pytest.raises(ConfigurationError, match="sites_per_round is 2, below least_contributors = 3"):
        controller(sites_per_round=2, least_contributors=3)
    assert controller(sites_per_round=2, least_contributors=3, max_age=1).least_contributors == 3


def test_a_list_of_other_images_than_the_checkpoint_is_about_is_refused():
    server = controller(public_list="list.csv")
    server._digest, server._reference = "aa" * 32, {"public": {}}
    with pytest.raises(
        CheckpointError, match=r"another public set \(bbbbbbbbbbbb\) than list\.csv lists \(aaaaaaaaaaaa\)"
    ):
        server.load_state_dict({"digest": "bb" * 32, "images": 0, "rows": None})


def test_confidence_needs_rows():
    with pytest.raises(ConfigurationError, match="weighting ccr is for probabilities, content is none"):
        ExchangeOptions(content="none", weighting="ccr")
