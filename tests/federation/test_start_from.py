"""A run that starts from the head in closed form: it is scored before the first round, and stays where rounds only harm."""

import sys

import pytest
import torch

import grandrounds as gr
from grandrounds.deployment import reference, simulate
from grandrounds.deployment.jobs import load_job
from grandrounds.deployment.presets import with_options
from grandrounds.errors import ConfigurationError
from grandrounds.federation.server.start import load_start
from grandrounds.files import write_json
from grandrounds.models.registry import build_model
from grandrounds.protocol.problem import Problem

START = {
    "controller.start_from": "ridge",
    "problem.head": "depths",
    "problem.trainable": "head",
    "problem.test_view": "half_turn",
    "executor.steps": 2,
    "executor.logit_adjustment": 1,
    "executor.batch_size": 8,
    "executor.device": "cpu",
    "executor.feature_cache": 1,
}


@pytest.fixture
def go(tmp_path, shared_cache):
    """Run FedAvg from the ridge head with two synthetic sites."""

    def run(**options):
        place = tmp_path / "run"
        return gr.run(
            "fedavg",
            2,
            rounds=2,
            options={**START, **options},
            workspace=place,
            progress=False,
            execution=gr.Execution(workers=1),
            seed=4,
        )

    return run


def test_the_head_is_the_result_where_training_only_harms_it(go):
    run = go(**{"executor.learning_rate": 1e3})
    assert run.summary["selected"]["round"] == 0
    assert run.scores().loc["pooled", "balanced_accuracy"] == run.scores().loc["ridge", "balanced_accuracy"]
    ridge, selected = (
        torch.load(run.workspace / path, weights_only=True) for path in ("reference.pt", "results/selected.pt")
    )
    assert ridge.keys() == selected.keys()
    assert all(torch.equal(value, selected[name]) for name, value in ridge.items())


def test_what_is_remarked_on_the_head_is_said_before_the_first_round(go, monkeypatch, capsys):
    computed = reference._computed

    def remarked(*given):
        entry = computed(*given)
        monkeypatch.setattr(simulate, "run_in_process", lambda *_: sys.exit(0))
        return {**entry, "remarks": ["labels exchanged"]}

    monkeypatch.setattr(reference, "_computed", remarked)
    with pytest.raises(SystemExit):
        go()
    assert "labels exchanged" in capsys.readouterr().err


def test_risks_are_decisions_where_training_learns_the_shares_of_the_classes(go):
    run = go(**{"executor.logit_adjustment": 0, "controller.rounds": 1})
    last = torch.load(run.workspace / "results" / "last.pt", weights_only=True)
    ridge = torch.load(run.workspace / "reference.pt", weights_only=True)
    [name] = [name for name in last if name.endswith("risk")]
    factor, addend = last[name].view(torch.float32)
    assert (factor.tolist(), addend.tolist()) == ([1.0] * 4, [0.0] * 4)
    assert not torch.equal(last[name], ridge[name])


def test_a_head_of_before_risks_is_a_start(go, tmp_path, monkeypatch):
    go(**{"controller.rounds": 1})
    place = tmp_path / "run" / "reference.pt"
    ridge = torch.load(place, weights_only=True)
    torch.save({name: value for name, value in ridge.items() if not name.endswith("risk")}, place)
    problem = Problem.from_dict({**load_job("fedavg").options("problem"), "head": "depths", "trainable": "head"})
    monkeypatch.setenv("GRANDROUNDS_START", str(place))
    network = build_model(problem.model_spec(pretrained=True), 4)
    load_start(network, "ridge", problem, 4, None, None)
    own = network.state_dict()
    linear = next(name for name in own if name.endswith("linear.weight"))
    assert torch.equal(own[linear], ridge[linear])


def test_training_goes_on_from_the_head_and_a_resumed_run_keeps_its_start(go):
    run = go(**{"executor.learning_rate": 1e-6, "controller.rounds": 1})
    last = torch.load(run.workspace / "results" / "last.pt", weights_only=True)
    ridge = torch.load(run.workspace / "reference.pt", weights_only=True)
    moved = {name: float((value.double() - ridge[name].double()).abs().max()) for name, value in last.items()}
    assert 0 < max(moved.values()) < 1e-4  # steps of Adam are at most the learning rate
    again = go(**{"executor.learning_rate": 1e-6})
    assert again.summary["rounds_done"] == 2
    assert again.summary["configuration"]["start"] == run.summary["configuration"]["start"]


def test_all_layers_go_on_from_the_head_each_at_its_rate(go):
    rates = {"executor.learning_rate": 1e-4, "executor.head_rate": 0.01, "executor.weak_view": "affine"}
    run = go(**{**rates, "problem.trainable": "all", "executor.feature_cache": 0, "controller.rounds": 1})
    last = torch.load(run.workspace / "results" / "last.pt", weights_only=True)
    problem = Problem.from_dict(run.summary["configuration"]["problem"])
    start = build_model(problem.model_spec(pretrained=True), 4).state_dict()
    start |= torch.load(run.workspace / "reference.pt", weights_only=True)
    moved = {name: float((last[name] - start[name]).abs().max()) for name in last if name.endswith(("weight", "bias"))}
    head = {name: by for name, by in moved.items() if name.startswith(f"{list(start)[-1].partition('.')[0]}.")}
    assert 0 < max(head.values()) <= 2.1e-6  # two steps of Adam, each at most the learning rate
    assert all(2.1e-6 < by <= 2.1e-4 for name, by in moved.items() if name not in head)


def test_another_run_in_the_workspace_is_refused_before_the_head_is_computed(go, tmp_path, monkeypatch):
    go()
    (tmp_path / "run" / "reference.json").unlink()
    with pytest.raises(ConfigurationError, match=r"executor\.learning_rate"):
        go(**{"executor.learning_rate": 0.5})
    assert not (tmp_path / "run" / "reference.json").exists()


def test_without_the_sums_there_is_nothing_to_start_from(go, tmp_path):
    write_json(tmp_path / "run" / "flare" / "site-2" / "local" / "privacy.json", {})
    with pytest.raises(ConfigurationError, match=r"start_from=ridge.*policy; .* preset scratch"):
        go()


@pytest.mark.parametrize(
    ("value", "named"),
    [("a/b.pt", "start_from"), ("ridge", r"problem\.head=depths"), ("fedavg", "names this very run, 'fedavg'")],
    ids=["path", "head", "itself"],
)
def test_a_start_that_cannot_be_is_refused_before_the_run(value, named):
    with pytest.raises(ConfigurationError, match=named):
        with_options(load_job("fedavg"), [f"controller.start_from={value}"]).checked()
