"""Trackers get the scalars that sites have answered, by site and round, and nothing that is not in the record."""

import json

import pytest

from grandrounds.federation.server.record import read_events
from tests.documentation.pages import blocks

SITES = ["site-1", "site-2"]
TENSORBOARD = {"id": "tensorboard", "path": "nvflare.app_opt.tracking.tb.tb_receiver.TBAnalyticsReceiver", "args": {}}
PAGE = "docs/how-to/tracking.md"
DOCUMENTED = {
    entry["id"]: entry for entry in (json.loads(block.text) for block in blocks(PAGE) if block.language == "json")
}
"""The receivers as the documentation has them."""


@pytest.fixture
def tracked(tiny, run, tmp_path):
    """Run two rounds with a receiver; returns the answers that the record has."""

    def go(receiver):
        job = tiny("fedavg", "controller.rounds=2")
        job.server["components"] = [receiver]
        found = run(job, tmp_path / "run", SITES)
        return [event for event in read_events(found.results) if event["event"] == "answer"]

    return go


def answered(answers, site, name):
    """Rounds and values of a scalar that a site has answered."""
    return [
        (event["round"], event["metrics"][name])
        for event in answers
        if event["site"] == site and name in event["metrics"]
    ]


def test_tensorboard_has_every_scalar_of_every_site(tracked, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    answers = tracked(TENSORBOARD)
    (folder,) = tmp_path.rglob("tb_events")
    assert sorted(place.name for place in folder.iterdir()) == SITES
    for site in SITES:
        written = EventAccumulator(str(folder / site)).Reload()
        names = {name for event in answers if event["site"] == site for name in event["metrics"]}
        assert {"loss", "validation.balanced_accuracy", "common.balanced_accuracy"} <= names
        assert set(written.Tags()["scalars"]) == names
        for name in names:
            shown = [(entry.step, entry.value) for entry in written.Scalars(name)]
            assert shown == [
                (step, pytest.approx(value, rel=1e-6)) for step, value in answered(answers, site, name)
            ]  # 32 bits


def test_mlflow_has_a_run_for_each_site(tracked, tmp_path):
    mlflow = pytest.importorskip("mlflow")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    receiver = DOCUMENTED["mlflow"]
    answers = tracked(receiver | {"args": receiver["args"] | {"tracking_uri": uri}})
    client = mlflow.MlflowClient(tracking_uri=uri)
    (experiment,) = [found for found in client.search_experiments() if found.name == "skin"]
    runs = client.search_runs([experiment.experiment_id])
    assert len(runs) == len(SITES)
    losses = [[(m.step, m.value) for m in client.get_metric_history(found.info.run_id, "loss")] for found in runs]
    assert sorted(losses) == sorted(answered(answers, site, "loss") for site in SITES)


def test_weights_and_biases_has_a_run_for_each_site_without_an_account(tracked, tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.chdir(tmp_path)
    tracked(DOCUMENTED["wandb"])
    files = [path for path in (tmp_path / "wandb").glob("offline-run-*/*.wandb") if path.stat().st_size > 0]
    assert len(files) == len(SITES)
