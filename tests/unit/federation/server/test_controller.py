"""A person who asks for a job's statistics is told how far the run is."""

import pytest
from nvflare.apis.fl_context import FLContext
from nvflare.widgets.info_collector import GroupInfoCollector, InfoCollector

from grandrounds.deployment.jobs import load_job
from grandrounds.methods.fedperl.controller import FedPerlController


@pytest.mark.parametrize(
    ("event", "told"),
    [
        (InfoCollector.EVENT_TYPE_GET_STATS, {"FedPerlController": {"round": 3, "rounds": 12}}),
        ("another event", {}),
    ],
)
def test_the_round_is_told_when_it_is_asked_for(event, told):
    controller = FedPerlController(**load_job("fedperl").controller["args"])
    controller.round_number = 3
    collector, context = GroupInfoCollector(), FLContext()
    context.set_prop(InfoCollector.CTX_KEY_STATS_COLLECTOR, collector)
    controller.handle_event(event, context)
    assert collector.info == told


def test_without_a_collector_nothing_happens():
    controller = FedPerlController(**load_job("fedperl").controller["args"])
    controller.handle_event(InfoCollector.EVENT_TYPE_GET_STATS, FLContext())
