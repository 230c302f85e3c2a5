"""Sites whose network torch's compiler has made learn the same model."""

import torch

from grandrounds.federation import site_hooks

SITES = ["site-1", "site-2"]


def test_a_run_with_compiled_networks_learns_what_plain_ones_learn(tiny, run, tmp_path, monkeypatch):
    compiled = []
    original = site_hooks.compile_network
    monkeypatch.setattr(site_hooks, "compile_network", lambda *given: (compiled.append(given[1]), original(*given)))
    asked = ("controller.rounds=2", "executor.compiler=aot_eager", "executor.threshold=0")
    found = run(tiny("ssfl", *asked), tmp_path / "compiled", SITES)
    plain = run(tiny("ssfl", *asked, "executor.compiler=none"), tmp_path / "plain", SITES)
    assert compiled == ["aot_eager"] * len(SITES), "once for each site, not in every round"
    for name, value in plain.models["last"].items():
        torch.testing.assert_close(found.models["last"][name], value, rtol=1e-3, atol=1e-4, msg=name)
