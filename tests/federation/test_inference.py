"""A run whose sites compute frozen layers in another form than exact says so, and decides as the exact one."""

import importlib.util

import pytest

from grandrounds.deployment.jobs import load_job
from grandrounds.deployment.presets import with_options
from grandrounds.errors import ConfigurationError

SITES = ["site-1", "site-2"]
QUICK = [
    "controller.min_sites=2",
    "executor.device=cpu",
    "problem.image_size=64",
    "problem.weights=null",
    "problem.backbone=efficientnet_lite0",
]


@pytest.mark.skipif(importlib.util.find_spec("openvino") is None, reason="the extra fast is not installed")
def test_ridge_in_single_precision_of_another_engine_is_near_the_exact_run(run, tmp_path):
    exact, fast = (
        run(with_options(load_job("ridge"), [*QUICK, f"executor.inference={form}"]), tmp_path / form, SITES).summary
        for form in ("exact", "fast")
    )
    assert [one["configuration"]["inference"] for one in (exact, fast)] == ["exact", "fast"]
    for site in SITES:
        before, after = (one["records"][site]["common"]["exact"]["log_loss"] for one in (exact, fast))
        assert after != before
        assert after == pytest.approx(before, abs=1e-3)


def test_a_job_in_a_form_that_was_not_measured_for_its_network_is_refused():
    job = with_options(
        load_job("fedperl"), ["problem.backbone=shufflenet", "problem.trainable=head", "executor.inference=fast"]
    )
    with pytest.raises(ConfigurationError, match=r"executor\.inference=fast.*shufflenet"):
        job.checked()
