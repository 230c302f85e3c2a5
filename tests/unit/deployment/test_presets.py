"""Presets are the options of a publication, of its code or of this project; the record names those a run changed."""

import json
import re

import pytest

from grandrounds.commands.options import SimulatedJobArguments
from grandrounds.deployment.jobs import job_names, load_job, write_job
from grandrounds.deployment.presets import PRESETS_FILE, configured_job, parsed, presets_of, with_preset
from grandrounds.errors import ConfigurationError

OFFERED = [(name, preset) for name in job_names() for preset in presets_of(load_job(name))]


def options_of(name, preset):
    job = with_preset(load_job(name), preset)
    return job.options("controller"), job.options("executor"), job.options("problem")


@pytest.fixture
def mine(tmp_path):
    """A job folder with presets of its own: ``mine({...})``, or the text of the file."""
    folder = write_job(load_job("fedavg"), tmp_path / "mine")

    def make(presets):
        text = presets if isinstance(presets, str) else json.dumps(presets)
        (folder / PRESETS_FILE).write_text(text)
        return load_job(folder)

    return make


@pytest.mark.parametrize(("name", "preset"), OFFERED)
def test_every_preset_of_every_job_is_a_job_that_can_be_built(name, preset):
    job = load_job(name)
    chosen = with_preset(job, preset)
    chosen.checked()
    assert chosen.options("controller")["preset"] == preset
    for part, options in presets_of(job)[preset].items():
        assert options.items() <= chosen.options(part).items()
    assert job == load_job(name), "the job itself stays as it is"


@pytest.mark.parametrize("name", ["fedavg", "fedperl", "local", "local_fixmatch", "ssfl"])
def test_the_jobs_of_the_paper_offer_its_text_its_code_and_a_recommendation(name):
    assert {"paper", "code", "recommended"} <= set(presets_of(load_job(name)))


FEDERATED, ALONE = ("fedavg", "fedperl", "ssfl"), ("local", "local_fixmatch")
FAMILIES = [(name, name) for name in ("paper", "code", "scratch", "recommended", "trained")]
"""A preset of the federated methods, and that of their baselines at one site."""


@pytest.mark.parametrize(("preset", "own"), FAMILIES)
def test_a_site_alone_is_stricter_with_pseudo_labels_than_a_federation(preset, own):
    ssfl, fedperl = (options_of(name, preset)[1]["threshold"] for name in ("ssfl", "fedperl"))
    alone = options_of("local_fixmatch", own)[1]["threshold"]
    assert ssfl == fedperl < alone


@pytest.mark.parametrize(("preset", "own"), FAMILIES)
def test_fedperl_and_its_baselines_train_the_same_network_in_the_same_way(preset, own):
    found, network = {}, ("backbone", "image_size", "weights", "intensities", "trainable", "norm", "head")
    chosen = {**dict.fromkeys(FEDERATED, preset), **dict.fromkeys(ALONE, own)}
    for name, one in chosen.items():
        controller, executor, problem = options_of(name, one)
        shared = [executor[option] for option in ("batch_size", "learning_rate", "class_weights", "feature_cache")]
        shared += [controller["rounds"], controller["selection_metric"]]
        found[name] = [*shared, *(problem[option] for option in network)]
    assert all(values == found["fedperl"] for values in found.values())


@pytest.mark.parametrize("name", [*FEDERATED, *ALONE, "fedirm"])
def test_a_trained_network_starts_from_the_ridge_head_and_rates_fall_with_depth(name):
    controller, executor, problem = options_of(name, "trained")
    assert (problem["head"], problem["trainable"], problem["norm"]) == ("depths", "all", "frozen")
    assert "ridge" in (controller.get("start_from"), executor.get("own_head"))
    assert executor["head_rate"] < 1
    with_preset(load_job(name), "trained").checked()


def test_ssfl_is_fedperl_without_peers():
    for preset, parts in presets_of(load_job("ssfl")).items():
        theirs = presets_of(load_job("fedperl"))[preset]
        for part, options in parts.items():
            assert options.items() <= theirs[part].items(), f"{preset} {part}"


def test_without_a_preset_the_options_are_those_of_the_files_and_the_assignments():
    job = load_job("fedperl")
    assert with_preset(job, None) == job
    changed = with_preset(job, None, {("controller", "peers"): 3})
    assert changed.options("controller")["peers"] == 3
    assert changed.options("controller")["preset"] == ""


@pytest.mark.parametrize(
    ("assignments", "label"),
    [
        ([], "paper"),
        (["controller.seed=7"], "paper"),
        (["controller.rounds=500"], "paper"),
        (["controller.rounds=3"], "paper, but controller.rounds"),
        (["controller.rounds=3", "controller.rounds=500"], "paper"),
        (
            ["problem.image_size=64", "executor.steps=2", "controller.seed=7"],
            "paper, but executor.steps, problem.image_size",
        ),
        (["controller.sites_per_round=null"], "paper, but controller.sites_per_round"),
        (["controller.preset=mine"], "paper"),
    ],
)
def test_an_assignment_wins_and_the_record_names_the_changed_options(assignments, label):
    changed = with_preset(load_job("fedperl"), "paper", parsed(load_job("fedperl"), assignments))
    assert changed.options("controller")["preset"] == label
    changed.checked()
    for assignment in assignments[-1:]:
        key, _, value = assignment.partition("=")
        part, _, option = key.partition(".")
        assert option == "preset" or changed.options(part)[option] == json.loads(value)


def test_the_command_lines_job_has_the_preset_and_what_was_set_after_it():
    arguments = SimulatedJobArguments("fedperl", sites=3, assignments=["executor.steps=4"], preset="code")
    job, sites = arguments.checked()
    assert job.options("controller")["preset"] == "code, but executor.steps"
    assert job.options("executor")["steps"] == 4
    assert job.options("controller")["rounds"] == 200
    assert len(sites.names) == 3


@pytest.mark.parametrize(
    ("preset", "name"), [(None, "mdhfl"), ("rhfl", "mdhfl-rhfl"), ("paper, rhfl", "mdhfl-paper-rhfl")]
)
def test_the_written_job_is_named_after_its_presets(preset, name, tmp_path):
    folder = write_job(with_preset(load_job("mdhfl"), preset, {("controller", "rounds"): 3}), tmp_path / "job")
    assert json.loads((folder / "meta.json").read_text())["name"] == name
    assert load_job(folder).name == name


def test_several_presets_are_applied_in_order_and_recorded():
    values = {("controller", "rounds"): 3, ("controller", "run_name"): "trial"}
    job = with_preset(load_job("mdhfl"), "paper, rhfl", values)
    controller, executor = job.options("controller"), job.options("executor")
    assert (controller["weighting"], executor["pretrain_epochs"]) == ("ccr", 40.0)
    assert controller["preset"] == "paper + rhfl, but controller.rounds", (
        "the name of the run is no option of the method"
    )
    assert with_preset(load_job("mdhfl"), "rhfl,paper").options("controller")["weighting"] == "uniform"
    with pytest.raises(ConfigurationError, match="preset 'rfhl'"):
        with_preset(load_job("mdhfl"), "paper,rfhl")


def test_of_a_job_without_presets_none_can_be_chosen(tmp_path):
    job = load_job(write_job(load_job("fedavg"), tmp_path / "mine"))
    assert presets_of(job) == {}
    with pytest.raises(ConfigurationError, match="paper"):
        with_preset(job, "paper")


@pytest.mark.parametrize(
    "parts",
    [{"server": {"rounds": 3}}, {"controller": {"rounds": 3}, "executors": {}}, {"controller": 3}, ["controller"]],
)
def test_a_preset_with_another_part_than_a_job_has_is_named(mine, parts):
    job = mine({"fine": {"controller": {"rounds": 3}}, "odd": parts})
    message = f"{PRESETS_FILE}: preset 'odd' must be an object with controller, executor, problem"
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        with_preset(job, "fine")


def test_a_file_of_presets_that_is_no_json_is_named_with_its_line(mine):
    with pytest.raises(ConfigurationError, match=r"presets.json.*line 2:"):
        presets_of(mine('{\n "fast": }'))


def test_an_option_of_a_preset_that_does_not_exist_is_refused_with_the_nearest(mine):
    with pytest.raises(ConfigurationError, match=r"'round'.*controller.rounds\?"):
        with_preset(mine({"fast": {"controller": {"round": 3}}}), "fast")


@pytest.mark.parametrize("value", ["text with = and , in it", "null", "3", [2, 5], {"steps": 3}, None, True, 5e-05])
def test_a_value_of_a_preset_keeps_its_type(mine, value):
    chosen = with_preset(mine({"fast": {"controller": {"server_training": value}}}), "fast")
    found = chosen.options("controller")["server_training"]
    assert (found, type(found)) == (value, type(value))


BY_CLASS = [(None, "controller", "class_balance", 0.5), ("fedavg", "executor", "logit_adjustment", 1.0)]


@pytest.mark.parametrize(("name", "part", "option", "usual"), BY_CLASS)
def test_findings_weigh_alike_and_classes_do_not_unless_a_user_says_so(name, part, option, usual):
    preset = name and "recommended"
    for task, weight in (("single", usual), ("multi", 0.0)):
        problem = {"dataset": "mine", "classes": ["a", "b"], "task": task}
        job = configured_job(name, preset, {}, problem).checked()
        assert job.value(part, option) == weight
        assert job.value("controller", "preset").startswith("recommended")
    assert (name is None) or job.value("controller", "preset") == f"recommended, but {part}.{option}"
    with pytest.raises(ConfigurationError, match=f"task=multi is not supported by {part}.{option}; set it to 0"):
        configured_job(name, preset, {(part, option): usual}, problem).checked()
