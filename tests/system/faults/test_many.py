"""Twenty hospitals, some of which are lost at once: the others go on, and each that comes back takes part again."""

import os
import signal

import pytest

pytestmark = pytest.mark.faults
MANY = tuple(f"hospital-{number:02}" for number in range(1, 21))


@pytest.fixture(scope="module")
def federation(consortium, shared_cache):
    with consortium(MANY) as made:
        yield made


def test_three_of_twenty_hospitals_lose_their_jobs_and_miss_one_round_at_most(federation, run):
    """Killed at once; the job is submitted again with all of them."""
    run = run("many", "controller.min_sites=10", "controller.rounds=3", grace=60, attempts=2, sites=MANY)
    run.HOSPITALS, run.ROUNDS = MANY, 3
    run.await_round(2)
    for site in MANY[:3]:
        os.kill(run.process(site, run.SITE_JOB), signal.SIGKILL)
    contributions = run.end().summary["contributions"]
    assert set(contributions) == set(MANY)
    assert min(contributions.values()) >= run.ROUNDS - 1
