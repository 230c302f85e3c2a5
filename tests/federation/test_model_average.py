"""A moving average of global models beside the rounds: it is scored, selected and kept, and sites do not start from it."""

import pytest
import torch

import grandrounds as gr
from grandrounds.federation.checkpoints import read_saved
from grandrounds.protocol.messages import GLOBAL

OPTIONS = {
    "controller.selection_metric": "log_likelihood",
    "executor.steps": 3,
    "executor.batch_size": 8,
    "executor.device": "cpu",
}


@pytest.fixture
def go(tmp_path, shared_cache):
    """Run FedAvg with two synthetic sites."""

    def run(name, rounds=3, **options):
        place = tmp_path / name
        return gr.run(
            "fedavg",
            2,
            rounds=rounds,
            options={**OPTIONS, **options},
            workspace=place,
            progress=False,
            execution=gr.Execution(workers=1),
            seed=4,
        )

    return run


def global_models(run):
    """What sites went on from, by round."""
    saved = sorted(run.workspace.glob("state/*/server/round_*.pt"))
    return [read_saved(path)["content"]["method"][GLOBAL] for path in saved]


def validation_scores(run):
    """Of the models after each round, at each site."""
    return run.history().pivot(index="round", columns="site", values="validation.log_likelihood").dropna()


def last(run):
    return torch.load(run.workspace / "results" / "last.pt", weights_only=True)


def test_the_last_model_is_the_mean_of_all_rounds_and_training_is_that_without_it(go):
    plain, averaged = go("plain"), go("averaged", **{"controller.average_decay": 0.9})
    models = global_models(averaged)
    for name, value in last(plain).items():
        assert torch.equal(value, models[-1][name])  # to the bit: nothing but scores depends on the average
        if value.is_floating_point():
            mean = torch.stack([model[name] for model in models]).mean(dim=0)
            torch.testing.assert_close(last(averaged)[name], mean, rtol=1e-5, atol=1e-7)
    assert any(not torch.equal(value, last(averaged)[name]) for name, value in models[-1].items())


def test_the_average_is_what_sites_score(go):
    plain, averaged = go("plain"), go("averaged", **{"controller.average_decay": 0.9})
    newest = go("newest", **{"controller.average_decay": 0.0})
    scores = [validation_scores(run) for run in (plain, averaged)]
    assert scores[0].loc[2].equals(scores[1].loc[2])  # after one round
    assert (scores[0].loc[3:] != scores[1].loc[3:]).all(axis=None)
    assert newest.scores().equals(plain.scores())


def test_a_resumed_run_keeps_its_average(go):
    whole = go("whole", **{"controller.average_decay": 0.5})
    go("halves", rounds=2, **{"controller.average_decay": 0.5})
    resumed = go("halves", **{"controller.average_decay": 0.5})
    assert all(torch.equal(value, last(resumed)[name]) for name, value in last(whole).items())
