"""The swarm waits for all of its sites: before it begins, and before it makes a mean."""

import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.signal import Signal
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.ccwf.server_ctl import ClientStatus, ServerSideController
from swarm import SwarmAggregator, SwarmController

from grandrounds.deployment.jobs import load_job
from grandrounds.errors import ConfigurationError, GrandRoundsError

JOB = Path(__file__).parents[3] / "examples" / "swarm" / "job"
SITES = ["site-1", "site-2", "site-3"]


def controller(**options):
    return SwarmController(**{**load_job(JOB).options("controller"), **options})


def test_the_swarm_does_not_begin_before_every_site_is_ready(monkeypatch):
    swarm, needed, reasons = controller(), [], []
    swarm.participating_clients = SITES
    swarm.client_statuses = {site: ClientStatus() for site in SITES}
    swarm.client_statuses["site-1"].ready_time = swarm.client_statuses["site-3"].ready_time = time.time()
    monkeypatch.setattr(swarm, "broadcast_and_wait", lambda **options: needed.append(options["min_responses"]))
    monkeypatch.setattr(swarm, "system_panic", lambda reason, _: reasons.append(reason))
    # A site that FLARE has not configured never answers, and the others would wait for it.
    ServerSideController.control_flow(swarm, Signal(), FLContext())
    assert needed == [3]
    assert reasons[0].startswith("failed to configure clients ['site-2']")


def test_a_swarm_of_fewer_sites_than_asked_for_does_not_begin(monkeypatch):
    swarm, context = controller(min_sites=3), FLContext()
    context.set_prop(FLContextKey.WORKFLOW, "swarm")
    swarm._engine = SimpleNamespace(get_clients=lambda: [SimpleNamespace(name=site) for site in SITES[:2]])
    with pytest.raises(ConfigurationError, match=r"min_sites is 3.*are 2"):
        swarm.start_controller(context)


@pytest.fixture
def context():
    runner = SimpleNamespace(find_executor=lambda _: SimpleNamespace(trainers=SITES))
    made = FLContext()
    made.set_prop(FLContextKey.RUNNER, runner)
    made.set_prop(AppConstants.CURRENT_ROUND, 0)
    return made


def answer_of(aggregator, context, site, value):
    """A site's weights as FLARE gives them to the aggregator."""
    peer, of_site = FLContext(), context.clone()
    peer.set_prop(ReservedKey.IDENTITY_NAME, site)
    of_site.set_peer_context(peer)
    answer = DXO(DataKind.WEIGHTS, data={"w": torch.tensor([value])}).to_shareable()
    answer.add_cookie(AppConstants.CONTRIBUTION_ROUND, 0)
    answer.set_peer_props({ReservedKey.IDENTITY_NAME: site})
    return aggregator.accept(answer, of_site)


def ready(**options):
    aggregator = SwarmAggregator(**options)
    aggregator.handle_event(EventType.START_RUN, FLContext())
    return aggregator


def test_a_mean_waits_for_the_weights_that_are_still_being_added(context):
    aggregator = ready()
    for site, value in (("site-1", 1.0), ("site-2", 2.0)):
        assert answer_of(aggregator, context, site, value)

    def late():
        time.sleep(0.3)
        answer_of(aggregator, context, "site-3", 6.0)

    adding = threading.Thread(target=late)
    adding.start()
    mean = from_shareable(aggregator.aggregate(context)).data["w"]
    adding.join()
    assert mean.tolist() == [3.0]  # of two sites it would be 1.5


def test_each_mean_is_of_its_own_round_and_one_that_lacks_a_site_is_refused(context):
    aggregator = ready(patience=0.1)
    for site in SITES:
        answer_of(aggregator, context, site, 1.0)
    aggregator.aggregate(context)
    for site in SITES[:2]:
        answer_of(aggregator, context, site, 1.0)
    with pytest.raises(GrandRoundsError, match="only 2 of 3 sites are in the mean of the swarm"):
        aggregator.aggregate(context)
