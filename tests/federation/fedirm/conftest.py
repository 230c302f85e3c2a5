"""Four small hospitals, two of them with labels, and jobs for them: what the tests here share."""

import pytest

from grandrounds.data.partition.phantom_site import phantom_site
from grandrounds.federation.server.record import read_events

LABELLED, UNLABELLED = ["site-1", "site-2"], ["site-3", "site-4"]
SITES = LABELLED + UNLABELLED
OPTIONS = [
    "controller.rounds=4",
    "controller.unlabelled_start=1",
    "controller.min_support=2",
    "executor.min_support=2",
    "executor.steps=2",
    "executor.batch_size=8",
    "executor.uncertainty_threshold=1.3",
    "executor.device=cpu",
]


@pytest.fixture(scope="session")
def hospitals(tmp_path_factory, shared_cache):
    """Two hospitals with labels and two without."""
    folder = tmp_path_factory.mktemp("hospitals")
    for site in SITES:
        phantom_site(site, folder, size=32, images=60, labelled=float(site in LABELLED))
    return folder


@pytest.fixture(scope="session")
def small(tiny):
    """Make a small job: ``small("rscfed", "controller.subsets=1")``."""

    def make(*assignments, name="fedirm", path=None, **arguments):
        from grandrounds.deployment.jobs import load_job, with_options

        job = with_options(load_job(name), [*OPTIONS, *assignments])
        if path:
            entry = job.client["executors"][0]["executor"]
            entry["path"] = path
            entry["args"] |= arguments
        return job

    return make


@pytest.fixture(scope="session")
def go(run, hospitals):
    """Run a job with the hospitals."""

    def start(job, workspace, sites=SITES, **options):
        return run(job, workspace, sites, sites_dir=hospitals, **options)

    return start


@pytest.fixture(scope="session")
def whole(small, go, tmp_path_factory):
    """The run that the others are compared with."""
    return go(small(), tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="session")
def answers():
    """The function that gives the metrics of training answers by round and site."""

    def read(found):
        return {
            (event["round"], event["site"]): event["metrics"]
            for event in read_events(found.results)
            if event["event"] == "answer" and event["task"] == "train"
        }

    return read


@pytest.fixture(scope="session")
def relations():
    """The function that gives the record of relation matrices by round."""
    return lambda found: {event["round"]: event for event in read_events(found.results) if event["event"] == "relation"}
