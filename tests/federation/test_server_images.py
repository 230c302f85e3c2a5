"""A server that has images of its own: it scores, selects and trains."""

import csv
import json
import shutil

import pytest
import torch

from grandrounds.data.partition.phantom_site import phantom_site
from grandrounds.deployment.simulate import simulate
from grandrounds.errors import GrandRoundsError
from grandrounds.federation.server.record import read_events
from grandrounds.methods.supervised.controller import FedAvgController
from grandrounds.models.registry import build_model
from grandrounds.protocol.problem import ModelSpec

SITES = ["site-1", "site-2", "site-3"]


@pytest.fixture(scope="module")
def labels_at_the_server(tmp_path_factory):
    """Phantom hospitals without a label, and a server with them."""
    folder = tmp_path_factory.mktemp("disjoint")
    for site in SITES:
        phantom_site(site, folder, images=60, labelled=0.0)
    phantom_site("server", folder, images=120, labelled=1.0)
    return folder


@pytest.fixture(scope="module")
def disjoint(tiny):
    """The options of the scenario."""
    training = json.dumps({"steps": 4, "batch_size": 8, "learning_rate": 0.001})
    return [f"controller.server_training={training}", "executor.accept_unlabelled=true"]


def test_the_server_trains_first_and_sites_learn_from_pseudo_labels_alone(
    tiny, run, disjoint, labels_at_the_server, tmp_path
):
    found = run(tiny("fedperl", *disjoint, "controller.warm_up=1"), tmp_path, sites_dir=labels_at_the_server)
    for entry in found.summary["rounds"]:
        assert entry["server_training"]["samples"] == 72, "its labelled training images"
        assert entry["server_training"]["loss"] > 0
        assert entry["answered"] == SITES
    answers = [event for event in read_events(found.results) if event["event"] == "answer" and event["task"] == "train"]
    assert all(answer["metrics"]["loss_labelled"] == 0 for answer in answers)
    assert any(answer["metrics"]["accepted"] > 0 for answer in answers)


def test_sites_without_labels_wait_for_the_first_round_with_pseudo_labels(
    tiny, run, disjoint, labels_at_the_server, tmp_path
):
    found = run(tiny("ssfl", *disjoint, "executor.unsupervised_start=2"), tmp_path, sites_dir=labels_at_the_server)
    events = read_events(found.results)
    answers = [event for event in events if event["event"] == "answer" and event["task"] == "train"]
    assert {event["round"] for event in answers if "accepted" not in event["metrics"]} == {1}
    assert {event["round"] for event in answers} > {1}


def test_sites_start_from_the_servers_training_and_score_the_mean_of_the_models(
    tiny, run, disjoint, labels_at_the_server, tmp_path, monkeypatch
):
    sent = {}
    original = FedAvgController.payload_for

    def watched(self, site):
        sent[self.round_number] = (dict(self.state), dict(original(self, site).parts["global"]))
        return original(self, site)

    monkeypatch.setattr(FedAvgController, "payload_for", watched)
    found = run(tiny("ssfl", *disjoint), tmp_path, sites_dir=labels_at_the_server)
    start = build_model(ModelSpec("small", classes=4), seed=1).state_dict()
    name = "head.weight"
    assert torch.equal(sent[1][0][name], start[name])
    for mean, trained in sent.values():
        assert not torch.equal(mean[name], trained[name]), "trained before it is sent"
    number = found.summary["selected"]["round"]
    selected = sent[number + 1][0] if number + 1 in sent else found.models["last"]
    assert torch.equal(found.models["selected"][name], selected[name]), "the mean, not what the server made of it"
    for parts in found.summary["bytes"].values():
        assert parts["down.scored"] == 2 * parts["down.global"] / 5, "beside what they train, in two of three rounds"


def test_a_server_that_trains_needs_no_validation_images(tiny, run, labels_at_the_server, tmp_path):
    sites = tmp_path / "sites"
    shutil.copytree(labels_at_the_server, sites)
    manifest = sites / "server" / "manifest.csv"
    manifest.write_text(manifest.read_text().replace(",val,", ",train,"))
    options = ['controller.server_training={"steps": 2}', "executor.accept_unlabelled=true", "controller.rounds=1"]
    assert run(tiny("ssfl", *options), tmp_path / "run", sites_dir=sites).summary["status"] == "finished"
    with pytest.raises(GrandRoundsError, match="no image of server has split val"):
        run(tiny("fedperl", *options, "controller.policy=validation"), tmp_path / "other", sites_dir=sites)


def test_training_at_the_server_moves_what_is_sent(tiny, run, identical, disjoint, labels_at_the_server, tmp_path):
    with_training = run(tiny("ssfl", *disjoint), tmp_path / "with", sites_dir=labels_at_the_server)
    without = run(tiny("ssfl", *disjoint[1:]), tmp_path / "without", sites_dir=labels_at_the_server)
    assert not identical(with_training.models, without.models)


def test_a_resumed_run_trains_at_the_server_as_if_it_had_not_been_cut(
    tiny, run, assert_same_run, disjoint, labels_at_the_server, tmp_path
):
    options = [*disjoint, "controller.policy=validation", "controller.warm_up=1", "controller.peers=2"]
    whole = run(tiny("fedperl", *options), tmp_path / "whole", sites_dir=labels_at_the_server)
    job = tiny("fedperl", *options)
    cut = {"event": "_round_done", "round_number": 2, "party": "server", "hard": False}
    job.server["components"].append({"id": "cut", "path": "faulty.Interrupt", "args": cut})
    with pytest.raises(KeyboardInterrupt):
        simulate(job, tmp_path / "cut", SITES, sites_dir=labels_at_the_server)
    assert_same_run(run(tiny("fedperl", *options), tmp_path / "cut", sites_dir=labels_at_the_server), whole)


def test_a_site_without_labels_is_refused_unless_the_job_accepts_it(tiny, labels_at_the_server, tmp_path):
    with pytest.raises(GrandRoundsError, match=r"site-1: empty labelled set"):
        simulate(tiny("ssfl"), tmp_path, SITES, sites_dir=labels_at_the_server)


def test_the_server_selects_the_model_by_its_own_images(tiny, run, labels_at_the_server, tmp_path):
    options = ["controller.selection_images=server", "executor.accept_unlabelled=true", "controller.rounds=4"]
    options.append("problem.backbone=compact")  # the small network calls all images one class
    found = run(tiny("ssfl", *options), tmp_path, sites_dir=labels_at_the_server)
    scores = {event["round"]: event["mean"] for event in read_events(found.results) if event["event"] == "score"}
    best = max(scores.values())
    assert found.summary["selected"]["score"] == best
    assert found.summary["selected"]["round"] == max(number for number, score in scores.items() if score == best)
    # The server has 18 validation images of four classes: its score is not the mean over the sites.
    sites = [
        event["metrics"]["validation.balanced_accuracy"]
        for event in read_events(found.results)
        if event["event"] == "answer" and event["round"] == 3 and "validation.accuracy" in event["metrics"]
    ]
    assert scores[2] != pytest.approx(sum(sites) / len(sites))


def test_a_server_with_validation_images_alone_is_enough_for_a_policy(tiny, run, tmp_path):
    sites = tmp_path / "sites"
    for site in [*SITES, "server"]:
        phantom_site(site, sites, images=24)
    manifest = sites / "server" / "manifest.csv"
    header, *rows = list(csv.reader(manifest.read_text().splitlines()))
    split = header.index("split")
    with manifest.open("w", newline="") as stream:
        csv.writer(stream).writerows([header, *([*row[:split], "val", *row[split + 1 :]] for row in rows)])
    found = run(tiny("fedperl", "controller.policy=validation"), tmp_path / "run", sites_dir=sites)
    assert set(found.summary["rounds"][-1]["peer_validation"]) == set(SITES)


def test_scores_at_the_server_describe_a_model_as_in_the_released_code(tiny, run, identical, tmp_path):
    options = ["controller.warm_up=1", "controller.peers=1", "controller.anonymise=false"]
    plain = run(tiny("fedperl", *options), tmp_path / "plain")
    scored = run(tiny("fedperl", *options, "controller.validation_features=true"), tmp_path / "scored")
    matrices = [
        [event["matrix"] for event in read_events(found.results) if event["event"] == "similarity"]
        for found in (plain, scored)
    ]
    assert matrices[0][0] != matrices[1][0], "the same models, other features"


@pytest.mark.parametrize(
    ("option", "name"),
    [
        ("controller.policy=validation", "controller.policy=validation"),
        ("controller.validation_features=true", "controller.validation_features"),
        ("controller.selection_images=server", "controller.selection_images=server"),
        ("controller.server_training={}", "controller.server_training"),
    ],
)
def test_an_option_that_needs_images_at_the_server_is_named(tiny, tmp_path, option, name):
    sites = tmp_path / "sites"
    for site in SITES:
        phantom_site(site, sites, images=24)
        config = json.loads((sites / site / "grandrounds.json").read_text())
        config["datasets"] = {"skin": config["datasets"]["phantom"]}
        (sites / site / "grandrounds.json").write_text(json.dumps(config))
    with pytest.raises(GrandRoundsError, match=f"{name} needs images at the server: server: data set 'skin'"):
        simulate(tiny("fedperl", option, "problem.dataset=skin"), tmp_path / "run", SITES, sites_dir=sites)


def test_a_class_at_the_server_that_the_job_does_not_know_is_named(tiny, tmp_path):
    sites = tmp_path / "sites"
    for site in [*SITES, "server"]:
        phantom_site(site, sites, images=24)
    manifest = sites / "server" / "manifest.csv"
    with manifest.open(newline="") as stream:
        rows = list(csv.reader(stream))
    rows[1][rows[0].index("label")] = "melanoma"
    with manifest.open("w", newline="") as stream:
        csv.writer(stream).writerows(rows)
    with pytest.raises(GrandRoundsError, match=r"server/manifest.csv.*'melanoma'"):
        simulate(tiny("fedperl", "controller.policy=validation"), tmp_path / "run", SITES, sites_dir=sites)


def test_a_site_is_drawn_back_to_where_a_round_starts(tiny, run, tmp_path):
    """With a great mu the sites stay near the global model, and with it near its start."""
    moved = {}
    for weight in (0.0, 100.0):
        options = [f"executor.proximal_weight={weight}", "executor.algorithm=sgd", "executor.learning_rate=0.01"]
        found = run(tiny("fedavg", *options, "controller.rounds=1", "executor.steps=8"), tmp_path / str(weight))
        start = build_model(ModelSpec("small", classes=4), seed=1).state_dict()
        last = found.models["last"]
        names = [name for name in start if name.endswith("weight")]
        moved[weight] = sum(float((last[name] - start[name]).square().sum()) for name in names)
    assert 0 < moved[100.0] < 0.5 * moved[0.0]
    assert torch.isfinite(last["head.weight"]).all()
