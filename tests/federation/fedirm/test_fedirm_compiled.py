"""FedIRM with compiled networks; sites with and without labels share a process, and with it what is compiled."""

import pytest


def test_metrics_of_compiled_networks_equal_those_of_plain_ones(small, go, answers, tmp_path, graphs):
    """Two rounds: sites without labels train from the second on."""
    plain = answers(go(small("controller.rounds=2"), tmp_path / "plain"))
    assert graphs.frame_count == 0
    found = answers(go(small("controller.rounds=2", "executor.compiler=aot_eager"), tmp_path / "compiled"))
    assert graphs.frame_count > 0
    assert found.keys() == plain.keys()
    for place, expected in plain.items():
        assert found[place]["loss"] == pytest.approx(expected["loss"], rel=1e-2), place
