"""A run whose sites compute in another form than exact says so, and learns nearly the same."""

import pytest

from grandrounds.deployment.assignments import with_options
from grandrounds.deployment.jobs import load_job
from grandrounds.errors import ConfigurationError

SITES = ["site-1", "site-2"]
QUICK = ["controller.rounds=2", "executor.steps=2", "executor.batch_size=8", "executor.device=cpu"]


def test_a_run_in_another_form_is_near_the_exact_one_and_its_record_has_the_form(run, tmp_path):
    exact = run(with_options(load_job("fedperl"), QUICK), tmp_path / "exact", SITES).summary
    fused = run(
        with_options(load_job("fedperl"), [*QUICK, "executor.inference=fused"]), tmp_path / "fused", SITES
    ).summary
    assert [one["configuration"]["inference"] for one in (exact, fused)] == ["exact", "fused"]
    for site in SITES:
        before, after = (one["records"][site]["common"]["exact"]["log_loss"] for one in (exact, fused))
        assert after != before
        assert after == pytest.approx(before, abs=0.01)


def test_a_job_in_a_form_that_was_not_measured_for_its_network_is_refused():
    job = with_options(load_job("fedperl"), ["problem.backbone=shufflenet", "executor.inference=fused"])
    with pytest.raises(ConfigurationError, match=r"executor\.inference=fused.*shufflenet"):
        job.checked()
