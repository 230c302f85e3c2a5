"""Four small hospitals, two of them with labels, and jobs for them: what the tests here share."""

import pytest

from grandrounds.federation.server.record import read_events
from tests import federations
from tests.federations import Federation, draw_hospitals

LABELLED, UNLABELLED = ["site-1", "site-2"], ["site-3", "site-4"]
SITES = LABELLED + UNLABELLED


@pytest.fixture(scope="package")
def federation(tmp_path_factory, shared_cache):
    labelled = {site: float(site in LABELLED) for site in SITES}
    folder = draw_hospitals(tmp_path_factory.mktemp("hospitals"), SITES, 60, labelled)
    return Federation("fedirm", SITES, folder, ["controller.rounds=4"])


@pytest.fixture(scope="package")
def hospitals(federation):
    """Two hospitals with labels and two without."""
    return federation.folder


@pytest.fixture(scope="package")
def small(federation):
    """Make a small job: ``small("controller.subsets=1", name="rscfed")``."""
    return federation.job


@pytest.fixture(scope="package")
def go(federation):
    """Run a job with the hospitals."""
    return lambda job, workspace, sites=SITES, **options: federation(workspace, job=job, sites=sites, **options)


@pytest.fixture(scope="module")  # as the networks are
def whole(federation, small_networks, tmp_path_factory):
    """The run that the others are compared with."""
    return federation(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="session")
def answers():
    """The function that gives the metrics of training answers by round and site."""
    return federations.answers


@pytest.fixture(scope="session")
def relations():
    """The function that gives the record of relation matrices by round."""
    return lambda found: {event["round"]: event for event in read_events(found.results) if event["event"] == "relation"}
