import json
from statistics import fmean, stdev

import pytest

OPTIONS = ["--set", "executor.steps=1", "--set", "executor.batch_size=2", "--set", "problem.image_size=32"]


def test_methods_and_seeds_become_a_table_and_a_report(run, sites_dir, tmp_path):
    command = ["sweep", "fedavg", "local", "--seeds", "1,2", "--rounds", "1", *OPTIONS]
    command += ["--sites-dir", sites_dir(2), "--workspace", tmp_path / "runs"]
    shown = run(*command, "--report", tmp_path / "report")
    assert shown.exit_code == 0, shown.output
    assert [line.split("seed")[0].strip() for line in shown.stdout.splitlines() if "seed" in line] == [
        "fedavg", "fedavg", "local", "local",
    ]  # fmt: skip
    assert "balanced_accuracy" in shown.stdout
    assert (tmp_path / "report" / "report.html").is_file()
    again = run(*command, "--json")
    assert "4 of 4 runs have finished before" in again.stderr
    rows = json.loads(again.stdout)
    first, second = rows["fedavg seed 1"], rows["fedavg seed 2"]
    assert (first["seed"], second["seed"], rows["fedavg mean"]["seeds"]) == (1, 2, 2)
    for name in ("accuracy", "balanced_accuracy"):
        values = [first[name], second[name]]
        assert rows["fedavg mean"][name] == pytest.approx(fmean(values))
        assert rows["fedavg std"][name] == pytest.approx(stdev(values))
    assert [line.split()[:2] for line in shown.stdout.splitlines()[-4:]] == [
        ["fedavg", "mean"], ["fedavg", "std"], ["local", "mean"], ["local", "std"],
    ]  # fmt: skip


def test_values_of_an_option_are_compared_and_wrong_ones_refused(run, tmp_path):
    command = ["sweep", "fedavg", "--sites", "2", "--workspace", tmp_path, *OPTIONS, "--seeds", "3"]
    shown = run(*command, "--vary", "controller.rounds=1,2")
    assert shown.exit_code == 0, shown.output
    assert "rounds=1 seed 3" in shown.stdout
    assert "rounds=2 seed 3" in shown.stdout
    for wrong, reason in (
        (["--vary", "controller.peers=1"], "peers"),
        (["--seeds", "1,x"], "expected whole numbers"),
        (["--set", "executor.steps"], "expected part.option=value"),
    ):
        refused = run(*command, *wrong)
        assert refused.exit_code != 0
        assert reason in refused.stderr
