"""FedIRM with compiled networks; sites with and without labels share a process, and with it what is compiled."""

import pytest


def test_metrics_of_compiled_networks_equal_those_of_plain_ones(small, go, whole, answers, tmp_path, graphs):
    found = answers(go(small("executor.compiler=aot_eager"), tmp_path))
    assert graphs.frame_count > 0
    for place, expected in answers(whole).items():
        assert found[place]["loss"] == pytest.approx(expected["loss"], rel=1e-2), place
