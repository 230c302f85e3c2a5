"""Sites with networks of their own: who chooses them, where they are tested, and what stays at the site."""

import json
import shutil
import stat

import pytest
import torch

from grandrounds.data.partition.phantom_site import phantom_site
from grandrounds.deployment.jobs import load_job
from grandrounds.deployment.presets import with_options
from grandrounds.errors import ConfigurationError, GrandRoundsError
from grandrounds.models.registry import build_model
from grandrounds.protocol.problem import ModelSpec

SITES = ["site-1", "site-2"]
PUBLIC = {"manifest": "public/manifest.csv", "root": "public/images.npz", "public": True}
SHORT = [
    "controller.rounds=2",
    "executor.steps=1",
    "problem.backbone=compact",
    'executor.backbones={"site-2": "resnet10"}',
]


@pytest.fixture
def hospitals(tmp_path, shared_cache):
    """Two hospitals, and a function that changes the configuration of one."""
    for site in SITES:
        phantom_site(site, tmp_path / "hospitals", size=32, images=40)

    def write(site, **entries):
        path = tmp_path / "hospitals" / site / "grandrounds.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))

    return tmp_path / "hospitals", write


def test_each_site_trains_and_keeps_the_network_chosen_for_it(tiny, run, hospitals, tmp_path):
    folder, write = hospitals
    write("site-1", models={"phantom": {"norm": "group"}})
    job = tiny("local", *SHORT, "executor.test_last=true", "controller.validate_every=1")
    job.server["workflows"][0]["path"] = "own_models.AskingLocalController"
    found = run(job, tmp_path / "run", SITES, sites_dir=folder)
    facts = {site: entry["facts"] for site, entry in found.summary["registered"].items()}
    assert {site: sent["backbone"] for site, sent in facts.items()} == {"site-1": "compact", "site-2": "resnet10"}
    assert facts["site-1"]["architecture"] != facts["site-2"]["architecture"]
    assert found.summary["bytes"] == {}, "no weights travel"
    for site, expected in (("site-1", ("compact", "group")), ("site-2", ("resnet10", "batch"))):
        state = found.record.parent / site
        for name in ("own", "own_last"):
            described = json.loads((state / f"{name}.json").read_text())
            spec = ModelSpec(**described["model"])
            assert (spec.backbone, spec.norm) == expected
            build_model(spec, seed=0).load_state_dict(torch.load(state / f"{name}.pt", weights_only=True))
        last = torch.load(state / "state" / "round_00002.pt", weights_only=True)["content"]["model"]
        kept = torch.load(state / "own_last.pt", weights_only=True)
        assert all(torch.equal(last[entry], kept[entry]) for entry in last)
        assert found.summary["records"][site].keys() == {"own", "own_last"}
        assert site in found.summary["own_rounds"]
        predictions = found.results / site / "predictions_own_last.csv"
        assert stat.S_IMODE(predictions.stat().st_mode) == 0o600, "names of images, on whatever machine"


def test_an_own_model_is_refused_where_one_is_shared(tiny, run, hospitals, tmp_path):
    folder, write = hospitals
    write("site-2", models={"phantom": {"backbone": "resnet10"}})
    with pytest.raises(GrandRoundsError, match=r"site-2/grandrounds\.json: models\.phantom asks for resnet10"):
        run(tiny("fedavg", "controller.rounds=1", "controller.min_sites=2"), tmp_path / "run", SITES, sites_dir=folder)


def test_weights_of_another_network_are_refused(tiny, run, hospitals, tmp_path):
    path = tmp_path / "start.pt"
    torch.save(build_model(ModelSpec("compact", classes=4), seed=9).state_dict(), path)
    with pytest.raises(GrandRoundsError, match="starts from weights of compact, this site has resnet10"):
        run(
            tiny("local", *SHORT, f"problem.weights={path}", "problem.intensities=scaled"),
            tmp_path / "run",
            SITES,
            sites_dir=hospitals[0],
        )


@pytest.mark.parametrize(
    ("job", "option", "message"),
    [
        ("fedavg", 'executor.backbones={"site-1": "resnet10"}', "which needs model=own"),
        ("local", 'executor.backbones={"site-1": "resnet99"}', "backbones: site-1: unknown backbone 'resnet99'"),
        ("fedavg", "executor.release_model=true", "needs model=own"),
    ],
)
def test_options_that_do_not_fit_are_refused_before_the_run(job, option, message):
    with pytest.raises(ConfigurationError, match=message):
        with_options(load_job(job), [option]).checked()


def test_another_data_set_is_loaded_whole_and_once(tiny, run, hospitals, tmp_path):
    folder, write = hospitals
    for site in SITES:
        place = folder / site
        drawn = phantom_site("public", folder / "drawn", size=32, images=40).parent
        shutil.copytree(drawn, place / "public", dirs_exist_ok=True)
        path = place / "public" / "manifest.csv"
        path.write_text(path.read_text().replace(",round,", ",truck,"))
        datasets = json.loads((place / "grandrounds.json").read_text())["datasets"]
        write(site, datasets={**datasets, "public": PUBLIC})
    found = run(public_job(tiny), tmp_path / "run", SITES, sites_dir=folder)
    answered = [event["metrics"] for event in events(found) if event.get("task") == "train"]
    assert [(metrics["public"], metrics["public_cached"]) for metrics in answered] == [(40.0, 1.0)] * 2
    assert all(0 < metrics["public_known"] < 40 for metrics in answered), "a foreign label is an unknown one"


def test_a_missing_data_set_is_named_with_its_site(tiny, run, hospitals, tmp_path):
    with pytest.raises(GrandRoundsError, match=r"site-1.*'public'"):
        run(public_job(tiny), tmp_path / "run", SITES, sites_dir=hospitals[0])


def public_job(tiny):
    """A job whose sites also read public images."""
    job = tiny("fedavg", "controller.rounds=1", "controller.min_sites=2", "controller.validate_every=0")
    job.client["executors"][0]["executor"]["path"] = "registrations.ReadsPublicImages"
    return job


def events(found):
    """All events of a run."""
    return [json.loads(line) for line in (found.results / "events.jsonl").read_text().splitlines()]
