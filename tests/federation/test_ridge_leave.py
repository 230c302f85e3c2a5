"""A site leaves a run of ridge regression: from the sums that the server has kept, the head of training without it."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import save
from typer.testing import CliRunner

import grandrounds as gr
from grandrounds.cli import build_app
from grandrounds.data.manifest import manifest_digest
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.methods.ridge.leave import kept_sums, leave, notes_of
from grandrounds.models.closed_form.solve import solve
from grandrounds.models.closed_form.sums import Sums
from grandrounds.reporting.external.prediction import PortableSums, trained_model
from grandrounds.reporting.run import expectation
from grandrounds.reporting.runs import read_run
from tests.federations import SIDE, Federation, draw_hospitals

SITES = ["site-1", "site-2", "site-3"]
ALIKE = ["controller.class_balance=0", "controller.temperature=4.0"]


@pytest.fixture(scope="module")
def run(tmp_path_factory, shared_cache):
    folder = draw_hospitals(
        tmp_path_factory.mktemp("hospitals"), SITES, images={"site-1": 40, "site-2": 60, "site-3": 48}
    )
    return Federation("ridge", SITES, folder)


@pytest.fixture(scope="module")
def finished(run, tmp_path_factory):
    place = tmp_path_factory.mktemp("all")
    run(place, *ALIKE)
    return place


def state_of(place):
    return torch.load(place / "selected.pt", weights_only=True)


def test_the_head_is_that_of_training_without_the_site(run, finished, tmp_path):
    without = run(tmp_path / "without", *ALIKE, sites=["site-1", "site-3"])
    found = leave(finished, ["site-2"], tmp_path / "left")
    one, two = state_of(without.results), state_of(tmp_path / "left")
    assert one.keys() == two.keys()
    assert all(torch.equal(value, two[name]) for name, value in one.items())
    assert any(not torch.equal(value, two[name]) for name, value in state_of(finished / "results").items())
    assert found.penalty == without.summary["rounds"][1]["ridge"]["penalty"]
    assert found.exact
    assert found.stayed == ("site-1", "site-3")


def test_each_site_also_tests_the_head_of_the_others(run, finished, tmp_path):
    fixed = [*ALIKE, "controller.penalties=[0.3]"]
    sites, left = [*SITES, "site-4"], "site-2"
    # The other run has the site, too, and none of its labels.
    folders = {of: tmp_path / f"{of}" for of in (0.0, 1.0)}
    for labelled, folder in folders.items():
        draw_hospitals(folder, sites, labelled={**dict.fromkeys(sites, 1.0), left: labelled})
    all_of_them, without = (
        Federation("ridge", sites, folders[of])(tmp_path / f"run-{of}", *fixed) for of in (1.0, 0.0)
    )
    own = {name: value["elsewhere"]["exact"] for name, value in all_of_them.summary["records"].items()}
    assert own[left] == pytest.approx(without.summary["records"][left]["common"]["exact"], abs=1e-6)
    assert own[left] != pytest.approx(all_of_them.summary["records"][left]["common"]["exact"], abs=1e-6)
    assert own.keys() == {*sites}


def describe(folder, sources, beside=0):
    """Write the description of a partition whose sites have a source each, and some images of another one beside it."""
    described = {}
    for site, source in sources.items():
        described[site] = {
            "images": {"train": 48},
            "labelled": 48,
            "sources": {source: 48 - beside, "another": beside},
            "sha256": manifest_digest(folder / site / "manifest.csv"),
        }
    (folder / "partition.json").write_text(json.dumps({"classes": [], "sites": described}))


def test_each_site_also_tests_the_head_of_the_sites_of_other_sources(run, tmp_path):
    fixed = [*ALIKE, "controller.penalties=[0.3]"]
    sites, alike = [*SITES, "site-4"], ["site-1", "site-2"]
    folders = {of: tmp_path / f"{of}" for of in (0.0, 1.0)}
    for labelled, folder in folders.items():
        draw_hospitals(folder, sites, labelled={**dict.fromkeys(sites, 1.0), **dict.fromkeys(alike, labelled)})
        describe(folder, {site: "old" if site in alike else "new" for site in sites})
    all_of_them, without = (
        Federation("ridge", sites, folders[of])(tmp_path / f"run-{of}", *fixed) for of in (1.0, 0.0)
    )
    found = {site: tested["other_sources"]["exact"] for site, tested in all_of_them.summary["records"].items()}
    assert found.keys() == {*sites}
    for site in alike:
        assert found[site] == pytest.approx(without.summary["records"][site]["common"]["exact"], abs=1e-6)
    assert any("other sources, at each of 4" in line for line in expectation(all_of_them.summary))


def test_without_two_sources_of_several_sites_none_is_left_out(run, tmp_path):
    folder = draw_hospitals(tmp_path / "sites", SITES)
    cases = ((["a", "a", "a"], 0), (["a", "b", "c"], 0), (["a", "b", "b"], 2), (["a", "b", "b"], 3))
    for number, (names, beside) in enumerate(cases):
        describe(folder, dict(zip(SITES, names, strict=True)), beside)
        found = Federation("ridge", SITES, folder)(tmp_path / f"run-{number}", *ALIKE)
        tested = {site for site, of in found.summary["records"].items() if "other_sources" in of}
        # Where two of three sites are of one source, only the head of these two is of more than one site. Three of 48
        # images of another source at a site are too many to call it a site of one.
        assert tested == ({"site-1"} if number == 2 else set())


def test_one_site_with_labels_has_no_head_of_others_and_the_run_its_model(tmp_path, shared_cache):
    folder = draw_hospitals(tmp_path / "sites", SITES, labelled={"site-1": 1.0, "site-2": 0.0, "site-3": 0.0})
    found = Federation("ridge", SITES, folder)(tmp_path / "run", *ALIKE, "controller.largest_norm=128.0")
    assert (found.results / "selected.pt").is_file()
    assert {site: {*tested} & {"elsewhere"} for site, tested in found.summary["records"].items()} == {
        site: set() for site in SITES
    }


def test_the_new_run_is_read_as_one_without_scores_and_without_the_site(finished, tmp_path):
    leave(finished, ["site-2"], tmp_path / "left")
    found = read_run(tmp_path / "left", "left")
    assert found.log.untested == ("site-1", "site-3")
    assert "site-2" not in found.log.sites
    summary = json.loads((tmp_path / "left" / "summary.json").read_text())
    assert summary["left"]["class_weights"] == "of the sites that stayed"


@pytest.fixture(scope="module")
def weighted(run, tmp_path_factory):
    """A run with class weights, and features of one view."""
    place = tmp_path_factory.mktemp("weighted")
    return place, run(place, "controller.penalties=[0.3]", "controller.temperature=4.0", 'executor.views=["none"]')


def test_with_class_weights_the_head_is_at_the_old_ones_and_the_command_says_so(weighted, tmp_path):
    place, everyone = weighted
    arguments = ["run", "leave", str(place), "--site", "site-2", "--out", str(tmp_path / "left")]
    answer = CliRunner().invoke(build_app(), arguments)
    assert answer.exit_code == 0, answer.output
    assert "old class weights" in answer.output
    parts = everyone.record / "parts"
    one, three = (
        Sums.unpacked(torch.load(parts / f"{site}@00002.pt", weights_only=True)) for site in ("site-1", "site-3")
    )
    head = solve(one + three, 0.3)
    state = state_of(tmp_path / "left")
    weights = next(value for name, value in state.items() if name.endswith("linear.weight"))
    scale = next(value for name, value in state.items() if name.endswith("scale")).view(torch.float32)
    torch.testing.assert_close((weights * scale).T.double(), head[:-1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("sites", "named"), [(["site-9"], "no sums of site-9"), (SITES, "no site with a labelled image")]
)
def test_who_cannot_leave_is_named(finished, tmp_path, sites, named):
    with pytest.raises(ConfigurationError, match=named):
        leave(finished, sites, tmp_path / "left")
    assert not (tmp_path / "left").exists()


def test_other_runs_and_used_folders_are_refused(finished, tmp_path):
    with pytest.raises(ConfigurationError, match="is not empty"):
        leave(finished, ["site-2"], finished)
    with pytest.raises(ConfigurationError, match="no sums that the server has kept"):
        leave(tmp_path, ["site-2"], tmp_path / "left")
    server = tmp_path / "state" / "other" / "server"
    (server / "parts").mkdir(parents=True)
    other = {"configuration": {"method": "AveragingController"}, "status": "finished"}
    (server / "summary.json").write_text(json.dumps(other))
    with pytest.raises(ConfigurationError, match="a run of ridge"):
        leave(tmp_path, ["site-2"], tmp_path / "left")


@pytest.fixture
def few_enough(monkeypatch):
    """Sums of classes of three images may be exported."""
    monkeypatch.setattr("grandrounds.reporting.external.prediction.DEFAULT_SUM_PATIENTS", 3)


@pytest.mark.usefixtures("few_enough")
def test_sums_of_an_export_are_those_of_all_sites_and_fit_this_model_alone(finished, tmp_path):
    made = PortableSums.of_run(finished)
    (tmp_path / "sums.safetensors").write_bytes(made.to_bytes())
    model = trained_model(finished)
    found = PortableSums.read(tmp_path / "sums.safetensors", model)
    _, _, kept = kept_sums(finished)
    assert torch.equal(found.sums.products, sum(one.products for one in kept.values()))
    assert torch.equal(found.sums.targets, made.sums.targets)
    assert found.views == ("none", "half_turn")
    assert set(found.class_weights) == {1.0}
    others = {
        "classes": model.problem.classes[::-1],
        "image_size": 2 * SIDE,
        "channels": 1,
        "preprocessing": "draft",
        "intensities": "spread",
    }
    for name, value in others.items():
        other = replace(model, problem=replace(model.problem, **{name: value}))
        with pytest.raises(ConfigurationError, match=f"the sums are of another {name} "):
            PortableSums.read(tmp_path / "sums.safetensors", other)
    for name, value in {"frozen": "0" * 64, "backbone": "another"}.items():
        held = replace(made, problem={**made.problem, name: value})
        (tmp_path / "sums.safetensors").write_bytes(held.to_bytes())
        with pytest.raises(ConfigurationError, match=f"the sums are of another {name} "):
            PortableSums.read(tmp_path / "sums.safetensors", model)


@pytest.mark.usefixtures("few_enough")
def test_class_weights_of_an_export_are_those_of_the_images_in_the_sums(weighted):
    place, _ = weighted
    made = PortableSums.of_run(place)
    _, method, _ = kept_sums(place)
    counts = sum(method["class_counts"].values()).numpy()
    assert made.class_weights == pytest.approx(np.sqrt(counts.sum() / (len(counts) * counts)))
    assert made.sums.targets[-1].numpy() == pytest.approx(counts * made.class_weights)


@pytest.mark.usefixtures("few_enough")
def test_an_export_without_the_job_has_the_views_of_the_record(weighted, tmp_path):
    shutil.copytree(weighted[1].record, tmp_path / "server")
    assert PortableSums.of_run(tmp_path / "server").views == ("none",)


@pytest.mark.usefixtures("few_enough")
@pytest.mark.parametrize("name", ["executor.views", "problem.preprocessing"])
def test_a_record_that_does_not_state_how_images_became_features_is_refused(finished, tmp_path, name):
    (server,) = finished.glob("state/*/server")
    (tmp_path / "sums").write_bytes(PortableSums.of_run(server).to_bytes())
    shutil.copytree(server, tmp_path / "server")
    summary = json.loads((server / "summary.json").read_text())
    model = name.startswith("problem")
    stated = summary["configuration"]["problem"] if model else summary["rounds"][1]["ridge"]
    del stated[name.rpartition(".")[2]]
    (tmp_path / "server" / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(ConfigurationError, match=f"server: the record does not state {name}, so .* run the job again"):
        PortableSums.of_run(tmp_path / "server")
    if model:
        with pytest.raises(ConfigurationError, match=f"server: the record does not state {name}"):
            PortableSums.read(tmp_path / "sums", replace(trained_model(finished), record=tmp_path / "server"))


@pytest.mark.usefixtures("few_enough")
def test_damaged_files_of_sums_are_named(finished, tmp_path):
    made, model, path = PortableSums.of_run(finished), trained_model(finished), tmp_path / "sums.safetensors"
    told = {name: value for name, value in vars(made).items() if name != "sums"}
    packed = made.sums.packed()
    wide = {**packed, "targets": torch.zeros(2, 9).double()}
    narrow = {**packed, "targets": packed["targets"][:, :-1].contiguous()}
    damaged = [(packed, one) for one in ({}, [], {**told, "more": 1}, {**told, "views": 1}, {**told, "problem": [1]})]
    contents = [save(held, {"sums": json.dumps(one)}) for held, one in [*damaged, (wide, told), (narrow, told)]]
    for content in (b"no sums", save(packed), *contents):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"sums.safetensors has no sums"):
            PortableSums.read(path, model)


@pytest.mark.usefixtures("few_enough")
def test_a_place_re_solves_the_head_from_exported_sums(finished, tmp_path):
    def called(*arguments):
        result = CliRunner().invoke(build_app(), [str(one) for one in arguments])
        assert result.exit_code == 0, result.output
        return result

    wrote = called("export", finished, "--out", tmp_path / "model", "--with-sums").stdout
    assert str(tmp_path / "model" / "sums.safetensors") in wrote
    card = json.loads((tmp_path / "model" / "model_card.json").read_text())
    assert card["closed_form_sums"]["sums.safetensors"]["bytes"] == (tmp_path / "model/sums.safetensors").stat().st_size
    clinic = draw_hospitals(tmp_path / "clinic", ["hospital"], images={"hospital": 200})
    place = ("--manifest", clinic / "hospital/manifest.csv", "--root", clinic / "hospital/images.npz")
    adapt = ("evaluate", finished, *place, "--recalibrate", "head:10", "--json")
    plain, summed = (called(*adapt, *more).stdout for more in ((), ("--sums", tmp_path / "model/sums.safetensors")))
    told = [json.loads(one)["adapted"]["how"] for one in (plain, summed)]
    words = "last layer re-solved from labels"
    assert told == [words, f"{words} and the sums of training images"]
    called("export", finished, "--out", tmp_path / "model")
    assert not (tmp_path / "model" / "sums.safetensors").exists()


def test_an_export_has_risks_at_a_named_prevalence_and_the_same_decisions(finished, tmp_path):
    (name, *others) = gr.Run(finished).classes
    plain, moved = (
        gr.Run(finished).export(tmp_path / part, formats=["torchscript"], prevalence=named)
        for part, named in (("plain", None), ("moved", {name: 0.02}))
    )
    assert [path.name for path in plain] == [path.name for path in moved]
    images = torch.rand(5, 3, SIDE, SIDE)
    risk, decision = torch.jit.load(tmp_path / "plain" / "model.ts")(images)
    at_clinic, decided = torch.jit.load(tmp_path / "moved" / "model.ts")(images)
    counts = notes_of(gr.Run(finished).summary)["class_counts"]
    total = sum(counts.values())
    before = torch.tensor([counts[known] / total for known in (name, *others)])
    rest = 1 - before[0]
    after = torch.tensor([0.02, *(0.98 * share / rest for share in before[1:])])
    # Bayes' rule: what a risk says beside the share of its class stays.
    wanted = risk * after / before
    torch.testing.assert_close(at_clinic, wanted / wanted.sum(dim=1, keepdim=True))
    assert torch.equal(decided, decision)
    card = json.loads((tmp_path / "moved" / "model_card.json").read_text())
    assert card["risk_shares"]["named"] == {name: 0.02}


def test_a_head_without_a_site_is_exported_at_a_prevalence_by_the_counts_of_the_others(run, finished, tmp_path):
    without = run(tmp_path / "without", *ALIKE, sites=["site-1", "site-3"])
    arguments = ["run", "leave", str(finished), "--site", "site-2", "--out", str(tmp_path / "left")]
    assert CliRunner().invoke(build_app(), arguments).exit_code == 0
    counts = notes_of(json.loads((tmp_path / "left" / "summary.json").read_text()))["class_counts"]
    assert counts == notes_of(without.summary)["class_counts"]
    name = next(iter(counts))
    arguments = ["export", str(tmp_path / "left"), "--out", str(tmp_path / "model"), "--prevalence", f"{name}=0.02"]
    answer = CliRunner().invoke(build_app(), arguments)
    assert answer.exit_code == 0, answer.output + str(answer.exception)
    assert json.loads((tmp_path / "model" / "model_card.json").read_text())["risk_shares"]["named"] == {name: 0.02}


def test_the_sums_of_a_run_that_goes_on_after_its_head_are_found(run, finished, tmp_path):
    on = run(tmp_path / "on", *ALIKE, "controller.label_budget=6", "controller.checkpoint_every=2")
    assert not (on.record / "round_00003.pt").exists()
    one, two = (leave(place, ["site-2"], tmp_path / name) for place, name in ((finished, "1"), (tmp_path / "on", "2")))
    assert one == two
    assert all(torch.equal(of, state_of(tmp_path / "2")[name]) for name, of in state_of(tmp_path / "1").items())


@pytest.mark.parametrize("given", ["gone=0.1", "CLASS=1.5", "CLASS=most", "CLASS=0", "CLASS=0.3 CLASS=0.1"])
def test_a_prevalence_that_is_none_is_refused_and_nothing_is_written(finished, tmp_path, given):
    shares = given.replace("CLASS", gr.Run(finished).classes[0]).split(" ")
    arguments = ["export", str(finished), "--out", str(tmp_path / "model")]
    arguments += [part for share in shares for part in ("--prevalence", share)]
    result = CliRunner().invoke(build_app(), arguments)
    assert result.exit_code != 0
    assert "prevalence" in result.output + str(result.exception)
    assert not (tmp_path / "model").exists()


def test_sums_of_a_class_of_few_patients_are_not_exported(finished):
    with pytest.raises(ConfigurationError, match="fewer than 10 training patients of clustered, whose images"):
        PortableSums.of_run(finished)


@pytest.mark.usefixtures("few_enough")
@pytest.mark.parametrize(("patients", "said"), [(1, "fewer than 3 training patients"), (0, "run the job again")])
def test_many_images_of_one_patient_are_not_exported(finished, monkeypatch, patients, said):
    summary, method, kept = kept_sums(finished)
    held = {
        "class_patients": {"site-1": torch.full_like(method["class_counts"]["site-1"], patients)} if patients else {}
    }
    monkeypatch.setattr(
        "grandrounds.reporting.external.prediction.kept_sums", lambda _: (summary, {**method, **held}, kept)
    )
    with pytest.raises(ConfigurationError, match=said):
        PortableSums.of_run(finished)
