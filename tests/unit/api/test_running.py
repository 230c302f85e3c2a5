"""The Python API gives what the commands give, from the same files."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import grandrounds as gr
from grandrounds.api import sweeping
from grandrounds.cli import build_app
from grandrounds.data.images.decoding import to_square
from grandrounds.data.manifest import Record
from grandrounds.data.partition.files import write_partition
from grandrounds.deployment import reference
from grandrounds.deployment.jobs import load_job
from grandrounds.deployment.workspace import held_workspace
from grandrounds.reporting.external.result import ExternalResult
from grandrounds.reporting.run import expectation

CLASSES = ["nevus", "melanoma"]
SPLITS = ["train"] * 8 + ["val"] * 2 + ["test"] * 20  # of fewer than ten test images of a class there is no score


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    return drawn_sites(tmp_path_factory.mktemp("api"))


def drawn_sites(folder, names=("site-1", "site-2")):
    generator = np.random.default_rng(1)
    records = {}
    for site in names:
        records[site] = [
            Record(f"{site}-{number}.png", CLASSES[number % 2], split, patient=f"{site}-{number}")
            for number, split in enumerate(SPLITS)
        ]
        (folder / "images").mkdir(exist_ok=True)
        for record in records[site]:
            pixels = generator.integers(0, 256, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "images" / record.image)
    write_partition(records, folder / "sites", "skin", folder / "images", CLASSES, {"scheme": "test"})
    return gr.Sites.read(folder / "sites")


@pytest.fixture(scope="module")
def finished(sites, tmp_path_factory):
    return gr.run(
        "fedavg",
        sites,
        rounds=1,
        image_size=32,
        options={"executor.steps": 1, "executor.batch_size": 2},
        workspace=tmp_path_factory.mktemp("run"),
        progress=False,
    )


def test_importing_the_package_loads_neither_torch_nor_flare():
    code = "import sys, grandrounds; print([name for name in ('torch', 'nvflare', 'pandas') if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_every_public_name_is_there_and_documented():
    for name in gr.__all__:
        assert (getattr(gr, name).__doc__ or "").strip(), name
    assert set(gr.__all__) <= set(dir(gr))
    with pytest.raises(AttributeError, match="no attribute 'simulat'"):
        gr.simulat  # noqa: B018 - the access is what is tested


def test_counts_of_sites_are_those_of_the_partition(sites):
    assert sites.names == ("site-1", "site-2")
    assert sites.counts().loc["site-1"].to_dict() == {
        "training": 8, "labelled": 8, "validation": 2, "test": 20, "nevus": 15, "melanoma": 15,
    }  # fmt: skip
    assert gr.Sites.synthetic(3).counts().empty


def test_scores_are_those_of_the_summary(finished):
    tested = finished.summary["records"]
    scores = finished.scores()
    assert list(scores.index[:4]) == ["site-1", "site-2", "mean", "pooled"]
    for site in ("site-1", "site-2"):
        assert scores.loc[site, "images"] == 20
        assert scores.loc[site, "accuracy"] == pytest.approx(tested[site]["common"]["exact"]["accuracy"])
    assert scores.loc["pooled", "accuracy"] == pytest.approx(scores.loc[["site-1", "site-2"], "accuracy"].mean())
    assert finished.scores("own").loc["site-1", "accuracy"] == tested["site-1"]["own"]["exact"]["accuracy"]
    with pytest.raises(gr.ConfigurationError, match="has scores of selected, own, not of best"):
        finished.scores("best")


def test_history_has_losses_and_no_test_scores(finished):
    history = finished.history()
    assert history.loc[history["round"] == 1, "loss"].notna().all()
    assert not [name for name in history if name.startswith("common.")]


def test_predictions_of_files_and_of_arrays_are_those_of_the_run(finished, sites):
    written = pd.read_csv(finished.workspace / "results" / "site-1" / "predictions_common.csv")
    folder = sites.folder.parent / "images"
    files = [folder / name for name in written["image"]]
    found = finished.predict(files)
    expected = written[[f"probability_{name}" for name in CLASSES]].to_numpy()
    assert found[CLASSES].to_numpy() == pytest.approx(expected, abs=2e-6)
    assert list(found["predicted"]) == list(written["predicted"])
    arrays = np.stack([np.array(Image.open(path)) for path in files])
    assert finished.predict(arrays)[CLASSES].to_numpy() == pytest.approx(expected, abs=2e-6)
    assert to_square(arrays[0], 32, 3).shape == arrays[0].shape  # so no resizing could hide a difference
    assert len(finished.predict(folder)) == 60


def test_the_command_predicts_as_the_function_does(finished, sites, tmp_path):
    folder = sites.folder.parent / "images"
    runner, table = CliRunner(), tmp_path / "predicted.csv"
    assert (
        runner.invoke(build_app(), ["predict", str(finished.workspace), str(folder), "--out", str(table)]).exit_code
        == 0
    )
    expected = finished.predict(folder)
    written = pd.read_csv(table, index_col="image")
    assert written["predicted"].equals(expected["predicted"])
    assert written[[f"probability_{name}" for name in CLASSES]].to_numpy() == pytest.approx(
        expected[CLASSES].to_numpy(), abs=1e-6
    )
    one = sorted(folder.glob("*.png"))[0]
    printed = runner.invoke(build_app(), ["predict", str(finished.workspace), str(one)]).output
    assert printed.splitlines()[0] == "image,predicted,probability_nevus,probability_melanoma"
    as_json = json.loads(runner.invoke(build_app(), ["predict", str(finished.workspace), str(one), "--json"]).output)
    assert as_json[0]["probability_nevus"] == pytest.approx(expected.loc[one.name, "nevus"], abs=1e-6)


def test_images_to_label_are_the_least_certain_ones_of_each_predicted_class(finished, sites, tmp_path):
    arguments = ["predict", str(finished.workspace), str(sites.folder.parent / "images")]
    result = CliRunner().invoke(build_app(), [*arguments, "--label-next", str(tmp_path / "next.csv")])
    assert (result.exit_code, result.stdout) == (0, "")
    listed = pd.read_csv(tmp_path / "next.csv")
    expected = finished.predict(sites.folder.parent / "images")
    margins = (expected["nevus"] - expected["melanoma"]).abs()
    assert len(listed) == len(set(listed["image"])) == 30 < len(expected)
    for name, found in listed.groupby("predicted"):
        of_class = margins[expected["predicted"] == name].sort_values(kind="stable")
        assert margins[found["image"]].to_numpy() == pytest.approx(of_class.to_numpy()[: len(found)])


def test_a_run_offers_its_model_its_predictions_and_a_table_for_notebooks(finished, sites, tmp_path):
    written = finished.predictions
    assert list(written["site"].unique()) == ["site-1", "site-2"]
    assert len(written) == 40
    images = [Image.open(sites.folder.parent / "images" / name) for name in written["image"]]
    tensors = torch.stack([torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255 for image in images])
    with torch.no_grad():
        found = finished.model(tensors).softmax(1).numpy()
    assert found == pytest.approx(written[[f"probability_{name}" for name in CLASSES]].to_numpy(), abs=1e-5)
    shown = finished._repr_html_()
    assert f"{finished.scores().loc['pooled', 'accuracy']:.3f}" in shown
    shutil.copytree(finished.workspace, tmp_path / "federation", ignore=shutil.ignore_patterns("predictions_*"))
    with pytest.raises(gr.DataError, match="in a federation predictions stay at the sites"):
        gr.Run(tmp_path / "federation").predictions  # noqa: B018


def test_objects_in_memory_are_predicted_like_their_files(finished, sites, tmp_path):
    files = sorted((sites.folder.parent / "images").rglob("*.png"))[:3]
    expected = finished.predict(files)[CLASSES].to_numpy()
    pictures = [Image.open(path) for path in files]
    arrays = [np.array(picture) for picture in pictures]
    channels_first = torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2)
    for objects in (pictures, arrays, [torch.from_numpy(one) for one in arrays], channels_first, list(channels_first)):
        found = finished.predict(objects)
        assert list(found.index) == ["0", "1", "2"]
        assert found[CLASSES].to_numpy() == pytest.approx(expected, abs=1e-6)
    assert finished.predict(pictures[0])[CLASSES].to_numpy() == pytest.approx(expected[:1], abs=1e-6)
    exif = Image.Exif()
    exif[0x112] = 6  # lies on its side
    turned = tmp_path / "turned.jpg"
    pictures[0].save(turned, exif=exif, quality=95)
    assert finished.predict(Image.open(turned))[CLASSES].equals(
        finished.predict(turned)[CLASSES].set_axis(["0"]).rename_axis("image")
    )


@pytest.mark.parametrize(
    ("objects", "message"),
    [
        (3, "an image must be a path, got int; or an 8-bit array"),
        ([Image.new("F", (4, 4))], "PIL image 0 has mode F; convert it to RGB or L"),
        (torch.full((1, 3, 8, 8), 2.0), "from 0 to 1, got 2 to 2"),
        ([np.zeros((4, 4), np.uint8), "a.png"], "an image must be a path, got ndarray"),
    ],
)
def test_other_objects_are_refused_in_our_words(finished, objects, message):
    with pytest.raises(gr.ConfigurationError, match=message):
        finished.predict(objects)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gr.run(3.5), "a method must be a path, got float; name it, such as fedavg"),
        (
            lambda: gr.run("fedavg", pd.DataFrame()),
            "folder of a partition must be a path, got DataFrame; .*from_dataframe",
        ),
        (lambda: gr.run("fedavg", 2, workspace=3), "workspace must be a path, got int"),
        (lambda: gr.run("fedavg", 2, preset=3), "preset must be text or null, got 3"),
        (lambda: gr.Sites.from_folders(None), "a folder of images must be a path, got NoneType"),
        (lambda: gr.Sites.from_source(pd.DataFrame()), "a source of images must be a path, got DataFrame"),
        (lambda: gr.Sites.from_dataframe(["a"], "x"), "a path or a pandas DataFrame, got list"),
        (lambda: gr.Sites.from_manifest(pd.DataFrame({"image": ["a"]})), "a DataFrame has no folder: give images"),
    ],
)
def test_arguments_of_another_type_are_refused_in_our_words(call, message):
    with pytest.raises(gr.ConfigurationError, match=message):
        call()


def test_images_that_cannot_be_predicted_are_named(finished, tmp_path):
    with pytest.raises(gr.DataError, match=r"absent\.png does not exist"):
        finished.predict("absent.png")
    (tmp_path / "broken.png").write_bytes(b"no image")
    with pytest.raises(gr.DataError, match=r"broken\.png"):
        finished.predict(tmp_path / "broken.png")
    with pytest.raises(gr.ConfigurationError, match=r"8-bit arrays .* got int64 of shape \(1, 4, 4\)"):
        finished.predict(np.zeros((1, 4, 4), np.int64))


def test_a_folder_to_predict_is_read_by_its_bytes_and_what_is_left_out_is_said(finished, tmp_path, capsys):
    Image.fromarray(np.zeros((40, 40, 3), np.uint8)).save(tmp_path / "photo", "WEBP")
    (tmp_path / "notes.txt").write_text("x")
    assert list(finished.predict(tmp_path).index) == ["photo"]
    assert "2 files found = 1 used" in " ".join(capsys.readouterr().err.split())


def test_a_run_is_opened_again_and_drawn(finished, tmp_path):
    again = gr.Run(finished.workspace)
    assert again.classes == tuple(CLASSES)
    assert "learning" in again.figures()
    with pytest.raises(gr.ConfigurationError, match="does not exist"):
        gr.Run(tmp_path / "nowhere")


def test_an_evaluation_scores_another_place_and_refuses_the_runs_own(finished, sites):
    with pytest.raises(gr.ConfigurationError, match="took part in the run"):
        gr.evaluate(finished, sites, progress=False)
    found = gr.evaluate(finished, sites, allow_overlap=True, positive=["melanoma"], threshold=0.5, progress=False)
    assert found.scores().loc["pooled", "accuracy"] == pytest.approx(finished.scores().loc["pooled", "accuracy"])
    assert found.result.overlap.shared_images


def test_wrong_arguments_are_refused_with_the_reason_of_the_command(tmp_path):
    with pytest.raises(gr.ConfigurationError, match="fedprl is not a job; did you mean fedperl"):
        gr.run("fedprl", workspace=tmp_path / "run")
    with pytest.raises(gr.ConfigurationError, match=r"option.*controller.peers"):
        gr.run("fedperl", options={"controller.peer": 3}, workspace=tmp_path / "run")
    with pytest.raises(gr.ConfigurationError, match="threads is for the engine flare"):
        gr.run("fedperl", execution=gr.Execution(threads=2), workspace=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_sweep_runs_what_is_missing_and_compares_settings(sites, tmp_path, monkeypatch):
    options = {"executor.batch_size": 2, "controller.rounds": 1, "problem.image_size": 32}
    vary = {"executor.steps": [1, 2]}
    made = gr.sweep("fedavg", sites, workspace=tmp_path, seeds=[7], vary=vary, options=options, progress=False)
    scores = made.scores()
    assert list(scores.index) == ["steps=1 seed 7", "steps=2 seed 7"]
    assert list(scores["executor.steps"]) == [1, 2]
    assert (
        scores.loc["steps=2 seed 7", "accuracy"]
        == gr.Run(tmp_path / "steps=2-seed-7").scores().loc["pooled", "accuracy"]
    )
    started = []
    monkeypatch.setattr(sweeping, "_run", lambda plan, *_: started.append(plan.name) or "stopped")
    again = gr.sweep("fedavg", sites, workspace=tmp_path, seeds=[7], vary=vary, options=options, progress=False)
    assert started == []
    assert again.scores().equals(scores)
    vary["executor.steps"].append(3)
    with pytest.raises(gr.GrandRoundsError, match="1 of 3 runs failed: stopped"):
        gr.sweep("fedavg", sites, workspace=tmp_path, seeds=[7], vary=vary, options=options, progress=False)
    assert started == ["steps=3 seed 7"]
    with pytest.raises(gr.ConfigurationError, match=r"option.*executor.steps"):
        gr.sweep("fedavg", sites, workspace=tmp_path, vary={"executor.step": [1]})


@pytest.mark.slow
def test_a_sweep_over_methods_runs_each_with_every_seed(sites, tmp_path):
    options = {"executor.batch_size": 2, "controller.rounds": 1, "problem.image_size": 32}
    methods = [gr.FedAvg(steps=2), gr.Local(steps=1)]
    made = gr.sweep(methods, sites, workspace=tmp_path, seeds=[7, 8], options=options, progress=False)
    scores = made.scores()
    assert list(scores.index) == ["fedavg seed 7", "fedavg seed 8", "local seed 7", "local seed 8"]
    assert list(scores["job"]) == ["fedavg", "fedavg", "local", "local"]
    alone = gr.run(methods[0], sites, seed=7, options=options, workspace=tmp_path / "alone", progress=False)
    assert alone.scores().loc["pooled"].equals(made.runs["fedavg seed 7"].scores().loc["pooled"])
    assert load_job(tmp_path / "alone" / "job").value("executor", "steps") == 2
    assert (
        scores.loc["local seed 8", "accuracy"] == gr.Run(tmp_path / "local-seed-8").scores().loc["pooled", "accuracy"]
    )
    made.report(tmp_path / "report", progress=False)
    found = json.loads((tmp_path / "report" / "report.json").read_text())
    assert list(found["methods"]) == ["fedavg", "local"]
    for jobs in (["fedavg", "fedavg"], []):
        with pytest.raises(gr.ConfigurationError, match="different jobs"):
            gr.sweep(jobs, sites, workspace=tmp_path, options=options)
    with pytest.raises(gr.ConfigurationError, match="peers"):
        gr.sweep(["fedavg", "fedperl"], sites, workspace=tmp_path, vary={"controller.peers": [0]})


def test_a_held_out_site_trains_nothing_and_tests_the_model(sites, tmp_path, capsys):
    options = {"executor.steps": 1, "executor.batch_size": 2, "controller.min_sites": 1}
    others = sites.hold_out("site-2")
    found = gr.run(
        "fedavg", others, rounds=1, image_size=32, options=options, workspace=tmp_path, progress=False, reference=False
    )
    assert (found.summary["records"].keys(), others.held_out) == ({"site-1"}, ("site-2",))
    tested = gr.evaluate(found, gr.Sites(("site-2",), sites.folder), progress=False)
    (record,) = tested.tested.tests.sites.values()
    assert "held_out" not in found.summary
    with held_workspace(tmp_path), pytest.raises(gr.ConfigurationError, match="running"):
        found.score_held_out(progress=False)
    assert found.score_held_out(progress=False)["site-2"].scores().equals(tested.scores())
    assert found.summary["held_out"] == {"site-2": {"images": 20, "exact": dict(record.exact)}}
    (sentence,) = expectation(found.summary)
    assert f"{record.exact['balanced_accuracy']:.3f}" in sentence
    assert ExternalResult.read(tmp_path / "results" / "held_out_site-2.json").place == "site-2"
    again = {"rounds": 2, "image_size": 32, "workspace": tmp_path, "progress": False, "reference": False}
    with pytest.raises(gr.ConfigurationError, match="another run, which stays as it is"):
        gr.run("fedavg", others, options={**options, "executor.steps": 2}, **again)
    assert (tmp_path / "results" / "held_out_site-2.json").is_file()
    capsys.readouterr()
    longer = gr.run("fedavg", gr.Sites(others.names, others.folder), options=options, **again)
    assert "removed the scores at site-2" in capsys.readouterr().err
    assert longer.score_held_out() == {}
    assert "held_out" not in longer.summary
    assert not (tmp_path / "results" / "held_out_site-2.json").exists()


def test_without_a_selected_model_held_out_sites_test_the_mean_of_the_sites_own(tmp_path):
    held = drawn_sites(tmp_path, ("site-1", "site-2", "site-3")).hold_out("site-3")
    options = {"executor.steps": 1, "executor.batch_size": 2, "executor.release_model": True}
    again = {"rounds": 1, "image_size": 32, "workspace": tmp_path / "run", "progress": False, "reference": False}
    found = gr.run("local", held, options=options, **again)
    assert not found.summary["models"]
    assert found.score_held_out(progress=False)["site-3"].trained.is_ensemble
    assert found.summary["held_out"].keys() == {"site-3"}


def test_a_sweep_scores_held_out_sites(sites, tmp_path):
    options = {"executor.steps": 1, "executor.batch_size": 2, "controller.min_sites": 1, "controller.rounds": 1}
    made = {"workspace": tmp_path, "seeds": [1], "options": {**options, "problem.image_size": 32}, "progress": False}
    (found,) = gr.sweep("fedavg", sites.hold_out("site-2"), **made).runs.values()
    assert found.summary["held_out"].keys() == {"site-2"}


@pytest.mark.parametrize("start", [None, "ridge"])
def test_a_held_out_site_with_a_picture_of_another_is_named_before_training(tmp_path, monkeypatch, start):
    monkeypatch.setattr(reference, "_computed", lambda *_: pytest.fail("the start was computed"))
    sites = drawn_sites(tmp_path).hold_out("site-2")
    shutil.copy(tmp_path / "images" / "site-1-0.png", tmp_path / "images" / "site-2-28.png")
    options = {"controller.min_sites": 1, "controller.start_from": start, "problem.head": "depths"}
    options |= {"problem.trainable": "head", "executor.feature_cache": 1, "problem.backbone": "compact"}
    with pytest.raises(gr.DataError, match=r"site-1-0\.png .*site-2-28\.png"):
        gr.run("fedavg", sites, rounds=1, image_size=32, options=options, workspace=tmp_path / "run", progress=False)
    assert not (tmp_path / "run" / "results").exists()


def test_processes_of_a_sweep_hold_out_the_same_sites(sites, tmp_path, monkeypatch):
    commands = []
    ended = SimpleNamespace(returncode=1, stderr="error: not run")
    monkeypatch.setattr(sweeping.subprocess, "run", lambda command, **_: (commands.append(command), ended)[1])
    with pytest.raises(gr.GrandRoundsError, match="not run"):
        gr.sweep("fedavg", sites.hold_out("site-1"), workspace=tmp_path, processes=2, progress=False)
    words = commands[0]
    assert [words[words.index(option) + 1] for option in ("--sites", "--hold-out")] == ["2", "site-1"]
    with pytest.raises(gr.ConfigurationError, match="processes"):
        gr.sweep("fedavg", gr.Sites(("site-2",), sites.folder), workspace=tmp_path, processes=2, progress=False)


def test_sites_are_held_out_one_after_the_other():
    sites = gr.Sites(("a", "b", "c"), Path("sites")).hold_out("a").hold_out("c")
    assert (sites.names, sites.held_out) == (("b",), ("a", "c"))


@pytest.mark.parametrize(("chosen", "name"), [(None, "Leeds"), (2, "site-2")])
def test_only_a_site_with_images_is_held_out(sites, chosen, name):
    with pytest.raises(gr.ConfigurationError, match=f"no site '{name}'"):
        (sites if chosen is None else gr.Sites.synthetic(chosen)).hold_out(name)
