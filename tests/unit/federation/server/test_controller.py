"""FLARE's job statistics report the round of a run; a round that would destroy the model ends the run."""

import pytest
import torch
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_context import FLContext
from nvflare.widgets.info_collector import GroupInfoCollector, InfoCollector

from grandrounds.deployment.jobs import load_job
from grandrounds.errors import ConfigurationError, GrandRoundsError
from grandrounds.federation.server.record import RunRecord
from grandrounds.federation.server.subscribers import JobStatistics
from grandrounds.methods.fedperl.controller import FedPerlController
from grandrounds.methods.supervised.controller import FedAvgController
from grandrounds.protocol.messages import Result, model_update


def test_job_statistics_report_the_round_to_a_collector(tmp_path):
    component, context, collector = FLComponent(), FLContext(), GroupInfoCollector()
    statistics = JobStatistics(component, 12, RunRecord(tmp_path, {}))
    statistics.round_started(3)
    ((handler, _),) = component.get_event_handlers()[InfoCollector.EVENT_TYPE_GET_STATS]
    handler(InfoCollector.EVENT_TYPE_GET_STATS, context)
    assert context.get_prop(InfoCollector.CTX_KEY_STATS_COLLECTOR) is None
    context.set_prop(InfoCollector.CTX_KEY_STATS_COLLECTOR, collector)
    handler(InfoCollector.EVENT_TYPE_GET_STATS, context)
    ((name, content),) = collector.info.items()
    assert (name, content["round"], content["rounds"]) == ("FLComponent", 3, 12)


@pytest.mark.parametrize(
    ("patience", "every", "done", "best", "stops"),
    [
        (None, 1, 9, 1, False),
        (3, 1, 4, 1, False),  # rounds 2 and 3 were scored after the best one
        (3, 1, 5, 1, True),
        (3, 1, 5, None, False),
        (4, 2, 6, 1, False),  # round 4 is the last that was scored
        (4, 2, 7, 1, True),
    ],
)
def test_a_run_stops_when_no_later_round_is_better(patience, every, done, best, stops):
    options = {"patience": patience, "validate_every": every}
    controller = FedPerlController(**{**load_job("fedperl").controller["args"], **options})
    controller.round_number = done
    assert bool(controller.stop_reason(best)) == stops


def test_patience_needs_scores():
    with pytest.raises(ConfigurationError, match="patience needs scores"):
        FedPerlController(**{**load_job("fedperl").controller["args"], "patience": 1, "validate_every": 0})


def test_a_model_that_is_not_finite_never_replaces_the_one_before():
    """Two updates that are finite, and whose sum with the model is not."""
    controller = FedAvgController(**load_job("fedavg").controller["args"])
    controller.round_number, controller.state = 7, {"w": torch.full((2,), 3e38)}
    controller.open_round(["site-1", "site-2"])
    for site in ("site-1", "site-2"):
        controller.absorb(site, Result(model_update({"w": torch.full((2,), 3e38)}), {}, 1))
    with pytest.raises(GrandRoundsError, match=r"round 7: .* after this round's updates"):
        controller.close_round()
    assert controller.state["w"].tolist() == torch.full((2,), 3e38).tolist()


def test_a_run_whose_sums_the_sites_have_made_secure_is_resumed_before_they_are_asked_again():
    """Under ``aggregation=auto`` a new controller does not know yet that the server sees sums alone."""
    before, after = (FedAvgController(**load_job("fedavg").controller["args"]) for _ in range(2))
    before.state, before.aggregator = {"w": torch.ones(2)}, before.new_secure_mean()
    assert not after.is_secure()
    after.load_state_dict(before.state_dict())
    assert after.state["w"].tolist() == [1.0, 1.0]
