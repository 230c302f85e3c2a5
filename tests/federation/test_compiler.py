"""Sites whose network torch has compiled learn the same model."""

import pytest
import torch

SITES = ["site-1", "site-2"]
ASKED = ("controller.rounds=2", "executor.compiler=aot_eager")


@pytest.mark.parametrize(
    ("job", "options", "tolerance"),
    [
        ("fedperl", ["executor.threshold=0", "controller.warm_up=1"], 1e-4),
        ("fedavg", ["executor.precision=bfloat16"], 1e-2),
    ],
)
def test_a_run_with_compiled_networks_learns_what_plain_ones_learn(
    tiny, run, tmp_path, graphs, job, options, tolerance
):
    found = run(tiny(job, *ASKED, *options), tmp_path / "compiled", SITES)
    made = graphs.frame_count
    assert made > 0
    plain = run(tiny(job, *ASKED, *options, "executor.compiler=none"), tmp_path / "plain", SITES)
    assert graphs.frame_count == made
    for name, value in plain.models["last"].items():
        torch.testing.assert_close(found.models["last"][name], value, rtol=10 * tolerance, atol=tolerance, msg=name)
