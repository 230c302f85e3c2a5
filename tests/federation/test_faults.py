"""A fault of one party costs that party its round and no other."""

import json
import math
import re
from types import SimpleNamespace

import pytest

from grandrounds import checks
from grandrounds.deployment.jobs import write_job
from grandrounds.errors import ConfigurationError, GrandRoundsError
from grandrounds.federation.engine import run_in_process
from grandrounds.federation.site import training
from grandrounds.methods.supervised.training import LabelledBatches
from grandrounds.protocol.paths import DETAILS_VARIABLE

SITES = ["site-1", "site-2", "site-3"]


@pytest.fixture(autouse=True)
def shared_details(monkeypatch):
    """As ``simulate`` does: all sites are on this machine."""
    monkeypatch.setenv(DETAILS_VARIABLE, "1")


def faulty(job, how, rounds, at="site-2", path="faulty.FaultyExecutor"):
    """The job with an executor that goes wrong at one site."""
    entry = job.client["executors"][0]["executor"]
    entry["path"] = path
    if path == "faulty.FaultyExecutor":
        entry["args"] |= {"at": at, "rounds": rounds, "how": how}
    return job


@pytest.fixture
def start(tmp_path, monkeypatch, shared_cache):
    """Run a job without the checks that ``simulate`` makes first; gives the server's summary."""

    def go(job, sites=SITES):
        monkeypatch.setenv("GRANDROUNDS_STATE", str(tmp_path / "state"))
        folder = write_job(job, tmp_path / "job")
        error = None
        try:
            run_in_process(folder, tmp_path / "flare", sites)
        except GrandRoundsError as caught:
            error = str(caught)
        path = tmp_path / "state" / job.options("controller")["run_name"] / "server" / "summary.json"
        return SimpleNamespace(error=error, summary=json.loads(path.read_text()))

    return go


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("nan", "update['head.weight'] has a value that is NaN or infinite"),
        ("infinite", "update['head.weight'] has a value that is NaN or infinite"),
        ("undeclared", "release 'images' of kind embeddings is not declared by the method"),
        ("boast", "validation.log_likelihood is at most 0, got 1"),
        ("raise", "RuntimeError in task train: see the site's log"),
    ],
)
def test_a_faulty_site_is_dropped_and_rejoins_in_the_next_round(tiny, run, tmp_path, how, reason):
    found = run(faulty(tiny("fedperl", "controller.rounds=4", "controller.warm_up=1"), how, [2]), tmp_path)
    rounds = found.summary["rounds"]
    assert [entry["answered"] for entry in rounds] == [SITES, ["site-1", "site-3"], SITES, SITES]
    assert [entry["asked"] for entry in rounds] == [SITES, SITES, SITES, SITES]
    assert list(rounds[1]["dropped"]) == ["site-2"]
    assert rounds[1]["dropped"]["site-2"].startswith(reason)
    assert "patient 4711" not in json.dumps(found.summary), "the text of an error stays at the site"
    assert found.summary["status"] == "finished"
    assert found.summary["contributions"] == {"site-1": 4, "site-2": 3, "site-3": 4}
    assert all(value.isfinite().all() for model in found.models.values() for value in model.values())


@pytest.mark.parametrize("memory", [1024, 0])
def test_a_model_that_is_absurd_reaches_no_peer(tiny, run, tmp_path, memory):
    """It had gone to the others as it was, and no attempt got past the round after."""
    options = ["controller.rounds=4", "controller.warm_up=1", f"controller.peer_memory_mib={memory}"]
    found = run(faulty(tiny("fedperl", *options), "absurd", [3]), tmp_path)
    rounds = found.summary["rounds"]
    assert [list(entry.get("bounded", {})) for entry in rounds] == [[], [], ["site-2"], []]
    assert [entry["answered"] for entry in rounds] == [SITES] * 4
    assert any("site-2" in peers for peers in rounds[3]["peers"].values())


def test_the_mean_of_the_others_is_as_if_the_faulty_site_had_not_been_there(tiny, run, tmp_path, identical):
    one_round = ["controller.rounds=1", "controller.min_sites=1", "controller.validate_every=0"]
    spoilt = run(faulty(tiny("fedperl", *one_round), "nan", [1]), tmp_path / "a")
    without = run(tiny("fedperl", *one_round), tmp_path / "b", sites=["site-1", "site-3"])
    assert identical(spoilt.models, without.models)


def test_a_site_that_replies_that_its_task_failed_is_asked_again_soon(tiny, run, tmp_path):
    job = faulty(tiny("fedperl", "controller.rounds=7"), "raise", [1, 2, 3, 4, 5, 6, 7])
    found = run(job, tmp_path)
    asked = [entry["round"] for entry in found.summary["rounds"] if "site-2" in entry["asked"]]
    assert asked == [1, 2, 4, 6]


def test_an_update_that_does_not_fit_is_refused_by_the_server(tiny, run, tmp_path):
    job = tiny("fedperl", "controller.rounds=1")
    found = run(faulty(job, "", [], path="faulty.ShapeShifter"), tmp_path)
    reason = found.summary["rounds"][0]["dropped"]["site-2"]
    assert reason == "update lacks 'head.bias' (1 missing, 0 unknown): another architecture?"


def test_too_few_valid_results_end_the_run_with_the_reasons(tiny, start):
    job = faulty(tiny("fedperl", "controller.min_sites=3"), "raise", [2])
    found = start(job)
    assert found.error == found.summary["reason"]
    assert found.error.startswith("round 2: 2 of 3 sites gave a valid result, min_sites is 3 (site-2: RuntimeError in")
    assert "fix the sites and submit the job again: it goes on after round 1" in found.error
    assert found.summary["status"] == "failed"
    assert found.summary["rounds_done"] == 1


def test_after_a_repair_of_the_sites_the_same_job_continues(tiny, start, run, tmp_path, identical):
    start(faulty(tiny("fedperl", "controller.min_sites=3"), "raise", [2]))
    found = start(tiny("fedperl", "controller.min_sites=3"))
    assert found.error is None
    assert found.summary["status"] == "finished"
    assert [entry["answered"] for entry in found.summary["rounds"]] == [SITES, SITES, SITES]


def test_too_few_sites_at_the_start_end_the_run_in_one_line(tiny, start):
    found = start(tiny("ssfl", "controller.min_sites=3", "controller.start_timeout=0.1"), sites=SITES[:2])
    assert found.error == (
        "2 sites are connected after 0.1 s, min_sites is 3: start more sites or lower min_sites "
        "(connected: site-1, site-2)"
    )
    assert found.summary["status"] == "failed"


@pytest.mark.parametrize("metric", ["auc", "log_loss"])
def test_a_metric_that_cannot_select_is_refused_before_anything_starts(tiny, metric):
    with pytest.raises(
        ConfigurationError, match=f"selection_metric of classes must be one of accuracy, .* got '{metric}'"
    ):
        tiny("ssfl", f"controller.selection_metric={metric}").checked()


def test_training_that_diverges_names_the_step_and_what_to_change(tiny, start):
    found = start(tiny("fedperl", "executor.learning_rate=1e30", "executor.steps=4"))
    assert re.search(
        r"site-1: training diverged: the (loss|prediction) of step \d is not finite; lower executor.learning_rate",
        found.error,
    )


@pytest.mark.parametrize("name", ["fedperl", "local_fixmatch"])
def test_a_round_that_diverged_is_discarded_as_a_whole_however_late_that_is_seen(
    tiny, run, tmp_path, monkeypatch, assert_same_run, name
):
    loss, steps = LabelledBatches.loss, []

    def spoilt(self, network, step):
        at_fault = (self._context.site, self._context.round_number) == ("site-2", 2)
        steps.extend([step] * at_fault)
        return loss(self, network, step) * (math.nan if at_fault and step == 1 else 1)

    monkeypatch.setattr(LabelledBatches, "loss", spoilt)
    job = tiny(name, "controller.min_sites=2", "executor.steps=3", "controller.rounds=3")
    at_once = run(job, tmp_path / "at_once", SITES, workers=1)
    assert steps == [0, 1]
    for module in (checks, training):  # as on a GPU, where looking at values waits
        monkeypatch.setattr(module, "on_host", lambda values: False)
    late = run(job, tmp_path / "late", SITES, workers=1)
    assert steps == [0, 1, 0, 1, 2]
    assert_same_run(at_once, late)
    dropped = [entry["dropped"] for entry in late.summary["rounds"]]
    message = "training diverged: the loss of step 1 is not finite; lower executor.learning_rate"
    assert dropped == [{}, {"site-2": message}, {}]


def test_a_data_set_that_no_site_has_is_named(tiny, start):
    found = start(tiny("ssfl", "problem.dataset=skin"))
    assert "site-1: data set 'skin' is not defined" in found.error
    assert "\n" not in found.error


def test_a_site_that_expects_a_model_refuses_a_task_without(tiny, start):
    found = start(tiny("local", "executor.model=shared"))
    assert "the task has no global model; executor option model=own needs none" in found.error


def test_a_device_that_is_no_device_is_refused(tiny, start):
    found = start(tiny("ssfl", "executor.device=gpu"))
    assert "device must be auto, cpu or cuda[:index], got 'gpu'" in found.error


def test_a_folder_that_is_no_job_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match=r"meta.json.*deploy_map"):
        run_in_process(tmp_path, tmp_path / "flare", SITES)


def test_details_of_an_error_stay_at_the_site(start, tiny, monkeypatch):
    monkeypatch.delenv(DETAILS_VARIABLE)
    found = start(tiny("ssfl", "problem.dataset=skin"))
    assert "site-1: ConfigurationError in task train: see the site's log" in found.error
    assert "skin" not in found.error
