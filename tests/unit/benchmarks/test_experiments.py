"""Configurations, results and jobs fit together; the runner lists what has no result."""

import json

import pytest
import torch

from benchmarks.experiment import BENCHMARKS, Experiment, Row, experiment_class, mean_of, pooled, read_predictions
from benchmarks.report import write
from benchmarks.results import Results
from grandrounds.data.site import CONFIG_NAME, PUBLIC_NAME
from grandrounds.evaluation.metrics import site_metrics
from grandrounds.models.registry import chosen_intensities
from grandrounds.protocol.problem import ModelSpec
from grandrounds.protocol.tasks import SINGLE

NAMES = sorted(path.parent.name for path in BENCHMARKS.glob("*/configuration.json"))


def experiment(name, tmp_path, assignments=()):
    (tmp_path / "start.pt").touch()
    return experiment_class(name)(name, tmp_path, tmp_path, BENCHMARKS / name / "results", assignments)


@pytest.mark.parametrize("name", NAMES)
def test_every_result_is_that_of_a_row(name, tmp_path):
    made = experiment(name, tmp_path)
    results = set(made.results.rglob("*.json"))
    assert results <= {made.result(row) for row in made.rows()}
    assert results


@pytest.mark.parametrize("name", NAMES)
def test_every_row_has_options_that_its_job_accepts(name, tmp_path):
    made = experiment(name, tmp_path)
    for row in made.rows(seeds=[1]):
        assert made.job(row, {"dataset": "skin"}).options("controller")["seed"] == 1


def test_rows_are_chosen_by_pattern_and_seed_in_the_order_of_settings_and_seeds(tmp_path):
    made = experiment("fedirm_ham10000", tmp_path)
    assert list(made.rows(["one_fedirm", "lesion_s*"], [2, 3])) == [
        *(Row("lesion", "silent", seed) for seed in (2,)),
        *(Row("lesion", "self_training", seed) for seed in (2,)),
        *(Row("lesion", "silent", seed) for seed in (3,)),
        *(Row("lesion", "self_training", seed) for seed in (3,)),
        *(Row("one", "fedirm", seed) for seed in (2, 3)),
    ]


def test_later_options_win_and_those_of_the_partition_go_there(tmp_path):
    made = experiment("mdhfl_pbc", tmp_path, ["controller.rounds=2", "partition.public_images=64"])
    row = Row("pair_20", "mdhfl", 3)
    assert made.options(row)[-2:] == ["controller.seed=3", "controller.rounds=2"]
    choices = made.partition_choices(row)
    assert (choices["noise"], choices["noise_rate"], choices["public_images"]) == ("pair", 0.2, 64)


def test_scores_of_predictions_are_of_the_labels_that_a_site_predicted(tmp_path):
    lines = {"a": ["2.png,cat,dog,.6,.4", "1.png,dog,dog,.7,.3"], "b": ["3.png,dog,cat,.1,.9"]}
    for site, rows in lines.items():
        (tmp_path / f"{site}.csv").write_text(
            "\n".join(["image,label,predicted,probability_cat,probability_dog", *rows])
        )
    found = pooled({site: read_predictions(tmp_path / f"{site}.csv", ["cat", "dog"]) for site in lines})
    assert [found.labels.tolist(), found.decided.tolist()] == [[1, 0, 1], [1, 1, 0]]
    decided, likeliest = site_metrics(SINGLE, *found), site_metrics(SINGLE, *found[:2])
    assert [decided["accuracy"], likeliest["accuracy"]] == pytest.approx([1 / 3, 2 / 3])
    assert decided["auc_macro"] == likeliest["auc_macro"]


def test_a_result_is_read_back_and_shown(tmp_path):
    content = json.loads((BENCHMARKS / "privacy_utility" / "results" / "infinite_fedavg_none_1.json").read_text())
    (tmp_path / "infinite_fedavg_none_1.json").write_text(json.dumps(content))
    assert list(Results("privacy_utility", tmp_path).settings["infinite"]) == ["fedavg_none"]
    write("privacy_utility", tmp_path, tmp_path / "page")
    rows = [line for line in (tmp_path / "page" / "README.md").read_text().splitlines() if line.startswith("| FedAvg")]
    assert rows == ["| FedAvg, all images with labels | 5 | none | infinite | — | — | 1 | 0.876 | 0.262 | 0.708 | — |"]


def test_the_mean_is_over_the_sites_that_report_a_metric():
    assert mean_of([{"a": 1.0}, {"a": 0.5}, {"b": 3.0}], "a", 3) == 0.75
    assert mean_of([{"b": 3.0}], "a", 3) is None


def test_an_experiment_without_own_measures_is_the_base_class():
    assert issubclass(experiment_class("fedperl_ham10000"), Experiment)
    assert experiment_class("fedperl_fmnist") is experiment_class("fedperl_cifar10")


def test_unseen_sites_take_no_part_and_their_images_are_scored(tmp_path, monkeypatch):
    names, taken = [f"site-{number}" for number in range(1, 11)], []
    monkeypatch.setattr("benchmarks.experiment.choose_sites", lambda *_: (names, {"dataset": "skin"}))
    monkeypatch.setattr("benchmarks.experiment.simulate", lambda job, place, sites, **_: taken.extend(sites))
    monkeypatch.setattr("benchmarks.experiment.read_events", lambda _: [])
    monkeypatch.setattr("benchmarks.ssl_pbc.experiment._global", lambda run: [(30, run.sites)])
    made = experiment("ssl_pbc", tmp_path)
    run = made.simulated(Row("unseen", "fedavg_lower", 1), tmp_path, {"classes": [], "sites": {}})
    assert taken == run.sites == [name for name in names if name not in ("site-4", "site-8")]
    assert made.measures(run)["scores"] == {30: ["site-4", "site-8"]}


def test_sites_that_start_from_networks_of_their_own_say_how_images_are_normalised(tmp_path, monkeypatch):
    site, network = tmp_path / "sites" / "site-1", tmp_path / "networks" / "site-1" / "own.pt"
    for folder in (site, network.parent):
        folder.mkdir(parents=True)
    torch.save({"head.weight": torch.zeros(1)}, network)
    (site / CONFIG_NAME).write_text(json.dumps({"datasets": {"pbc": {}, PUBLIC_NAME: {"manifest": "public.csv"}}}))
    made = experiment("mdhfl_pbc", tmp_path)
    monkeypatch.setattr("benchmarks.mdhfl_pbc.experiment.choose_sites", lambda *_: (["site-1"], {"dataset": "pbc"}))
    monkeypatch.setattr("benchmarks.mdhfl_pbc.experiment.simulate", lambda *_, **__: None)
    monkeypatch.setattr(made, "_pretrained", lambda *_: tmp_path / "networks")
    made.simulated(Row("symmetric_20", "mdhfl", 1), site.parent, {})
    [model] = json.loads((site / CONFIG_NAME).read_text())["models"].values()
    assert chosen_intensities(ModelSpec(classes=8, backbone="resnet10", **model)) == "scaled"


def test_sites_pretrain_the_network_of_their_setting(tmp_path, monkeypatch):
    made, trained = experiment("mdhfl_pbc", tmp_path), []
    monkeypatch.setattr("benchmarks.mdhfl_pbc.experiment.simulate", lambda job, *_, **__: trained.append(job))
    for setting in ("resnet12", "none"):
        row = Row(setting, "mdhfl", 1)
        made._pretrained(row, made.job(row, {"dataset": "pbc"}), ["site-1"], tmp_path)
    backbones = [job.options("executor")["backbones"] for job in trained]
    assert (backbones[0], trained[0].options("problem")["backbone"]) == (None, "resnet12")
    assert len(set(backbones[1].values())) == 4
