"""Every method trains a part of its network: frozen layers are in no message and no file, and features can be kept."""

import json
import shutil
from collections import Counter
from functools import partial

import numpy as np
import pytest
import torch

from grandrounds.api.prediction import predict_with
from grandrounds.commands.report import export
from grandrounds.data.partition.phantom_site import phantom_site
from grandrounds.data.site import load_site_data, locate_dataset
from grandrounds.deployment.jobs import load_job
from grandrounds.deployment.presets import with_options
from grandrounds.errors import GrandRoundsError
from grandrounds.evaluation.prediction import predict, tensors_of
from grandrounds.federation.site import executor as site_executor
from grandrounds.federation.site import features
from grandrounds.federation.site.features import Features
from grandrounds.models.partial import Front, frozen_digest
from grandrounds.models.pretrained import add_file
from grandrounds.models.registry import build_model
from grandrounds.protocol.messages import is_running_statistic
from grandrounds.protocol.problem import ModelSpec, Problem

from .conftest import names_in

SITES, UNLABELLED = ["site-1", "site-2", "site-3"], "site-4"
SHARED = ["controller.rounds=2", "problem.backbone=compact", "executor.device=cpu", "executor.batch_size=8"]
STEPS = ["executor.steps=2"]
EPOCHS = ["executor.pretrain_epochs=0.5", "executor.local_epochs=0.5"]
OWN = [*EPOCHS, "executor.backbones=null"]
MATCHES = [*STEPS, "executor.threshold=0.26"]
RELATIONS = [*STEPS, "controller.unlabelled_start=0", "controller.min_support=0", "executor.min_support=0"]
OPTIONS = {
    "fedavg": STEPS,
    "ssfl": MATCHES,
    "fedperl": [*MATCHES, "controller.peers=1", "controller.anonymise=false", "controller.warm_up=1"],
    "fedirm": RELATIONS,
    "fed_align_cl": ["executor.iterations=2", "executor.pace=2", "executor.warm_up=0"],
    "mdhfl": OWN,
    "local": STEPS,
}
SENDING_UPDATES = ("fedavg", "ssfl", "fedperl", "fedirm", "fed_align_cl")
# What is trained, and how many views of each image are kept.
LAST_LAYERS = [(job, "from:2", 2) for job in OPTIONS]
HEADS = [(job, "head", 0) for job in OPTIONS if job != "fed_align_cl"]
ALIKE = {"ssfl", "local"}
"""They train as another job here does: all train their last layers, and what comes on top of that is slow."""
FROZEN = ("stem.", "blocks.0.", "blocks.1.")


def quick(cases):
    """The cases, those of jobs that train as another one does marked as slow."""
    return [pytest.param(*case, marks=[pytest.mark.slow] if case[0] in ALIKE else []) for case in cases]


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory, shared_cache):
    """Four hospitals with public images, the last without labels, and a server with the public images."""
    folder = tmp_path_factory.mktemp("hospitals")
    drawn = phantom_site("public", folder / "drawn", size=32, images=24).parent
    public = {"manifest": "public/manifest.csv", "root": "public/images.npz", "public": True}
    for site in (*SITES, UNLABELLED):
        phantom_site(site, folder, size=32, images=40, labelled=0.0 if site == UNLABELLED else 0.7)
    for party in (*SITES, UNLABELLED, "server"):
        shutil.copytree(drawn, folder / party / "public")
        own = {} if party == "server" else {"phantom": {"manifest": "manifest.csv", "root": "images.npz"}}
        (folder / party / "grandrounds.json").write_text(json.dumps({"datasets": {**own, "public": public}}))
    return folder


def small(job, trainable, views=0, *assignments):
    chosen = [f"problem.trainable={trainable}", f"executor.feature_cache={views}", *assignments]
    return with_options(load_job(job), [*SHARED[: 3 if job == "fed_align_cl" else 4], *OPTIONS[job], *chosen])


@pytest.fixture(scope="module")
def go(run, hospitals, tmp_path_factory):
    """Run a job with three sites, one of them without labels for methods that have a part for it; each run once."""
    done = {}

    def start(job, trainable, views=0, *assignments):
        key = (job, trainable, views, assignments)
        if key not in done:
            there = [*SITES[:2], UNLABELLED] if job == "fedirm" else SITES
            workspace = tmp_path_factory.mktemp(job)
            done[key] = run(small(job, trainable, views, *assignments), workspace, there, sites_dir=hospitals)
            done[key].workspace = workspace
        return done[key]

    return start


def initial(trainable, seed=1, classes=4, **options):
    return build_model(ModelSpec("compact", classes=classes, trainable=trainable, **options), seed=seed)


@pytest.mark.parametrize(("job", "trainable", "views"), [*LAST_LAYERS, *quick(HEADS)])
def test_a_run_trains_sends_and_keeps_the_trained_part_alone(go, job, trainable, views):
    found = go(job, trainable, views)
    assert (found.summary["status"], found.summary["rounds_done"]) == ("finished", 2)
    assert [entry["dropped"] for entry in found.summary["rounds"]] == [{}, {}]
    trained = initial(trainable).state_dict()
    assert not any(name.startswith(FROZEN) for name in trained)
    for name, model in found.models.items():
        assert model.keys() == trained.keys(), name
    files = [path for path in found.workspace.rglob("*.pt") if "flare" not in path.parts]
    for path in files:
        named = list(names_in(torch.load(path, weights_only=True)))
        assert not [name for name in named if name.startswith(FROZEN)], path
    assert files
    assert found.summary["configuration"]["problem"]["trainable"] == trainable
    assert not list(found.workspace.rglob("*.features")), "kept features are removed with the run"


@pytest.mark.parametrize(("job", "trainable", "views"), quick([*LAST_LAYERS, ("fedavg", "head", 2)]))
def test_a_head_of_several_depths_is_trained_behind_frozen_layers(go, job, trainable, views):
    """Its scaling and temperature stay as they are, and are in no update."""
    found = go(job, trainable, views, "problem.head=depths")
    assert (found.summary["status"], found.summary["rounds_done"]) == ("finished", 2)
    assert [entry["dropped"] for entry in found.summary["rounds"]] == [{}, {}]
    started = initial(trainable, head="depths").state_dict()
    for name, model in found.models.items():
        assert model.keys() == started.keys(), name
        for entry in ("shift", "scale", "temperature"):
            assert torch.equal(model[f"classifier.{entry}"], started[f"classifier.{entry}"]), name
    if job in SENDING_UPDATES:
        floats = sum(tensor.nbytes for tensor in started.values() if tensor.is_floating_point())
        for site, sent in found.summary["bytes"].items():
            assert sent["up.update"] == floats * found.summary["contributions"][site]


@pytest.mark.parametrize("job", SENDING_UPDATES)
def test_messages_have_the_size_of_what_is_trained(go, job):
    trained = initial("from:2").state_dict().values()
    size = sum(tensor.nbytes for tensor in trained)
    floats = sum(tensor.nbytes for tensor in trained if tensor.is_floating_point())
    found = go(job, "from:2", 2)
    for site, sent in found.summary["bytes"].items():
        assert sent["up.update"] == floats * found.summary["contributions"][site]
        # Both rounds, the scores at the end, and the test.
        assert sent["down.global"] % size == 0
        if job == "fedperl":
            assert all(moved % size == 0 for name, moved in sent.items() if name.startswith("down."))
    assert found.summary["configuration"]["frozen"] == frozen_digest(initial("from:2"))
    assert floats < 0.8 * sum(tensor.nbytes for tensor in initial("all").state_dict().values())


def test_a_method_that_aligns_the_encoder_needs_one_to_train(go):
    with pytest.raises(GrandRoundsError, match=r"problem\.trainable=head freezes"):
        go("fed_align_cl", "head")


def test_kept_features_serve_the_test_of_every_model(run, hospitals, tmp_path, monkeypatch):
    passes, forward, in_form = Counter(), Front.forward, Front.in_form

    def counted(front, compute, inputs):
        passes.update(image.numpy().tobytes() for image in inputs if len(image) == front.channels)
        return compute(inputs)

    monkeypatch.setattr(Front, "forward", lambda self, inputs: counted(self, partial(forward, self), inputs))
    monkeypatch.setattr(Front, "in_form", lambda self, form: partial(counted, self, in_form(self, form)))
    monkeypatch.setattr(features, "FEATURE_BATCH", 1)  # no image passes again to fill a batch
    found = run(small("fedavg", "from:2", 2), tmp_path, SITES, sites_dir=hospitals)
    tested = set(found.summary["records"]["site-1"])
    assert {"common", "own"} <= tested
    # The first image of a site also shows the shape of the features.
    assert sum(count > 1 for count in passes.values()) == len(SITES)


def test_a_site_with_another_front_is_dropped_with_the_reason(go, monkeypatch):
    def network(self, context):
        return build_model(context.model_spec, context.seed + (context.site == "site-2"))

    monkeypatch.setattr(site_executor.SiteExecutor, "network", network)
    found = go("fedavg", "from:2", 0, "controller.min_sites=1", "problem.dropout=0.1")
    first = found.summary["rounds"][0]
    assert first["answered"] == ["site-1", "site-3"]
    assert "the frozen layers of compact differ from the server's" in first["dropped"]["site-2"]
    assert "\n" not in first["dropped"]["site-2"]


def test_features_cannot_be_kept_where_nothing_is_frozen(go):
    with pytest.raises(GrandRoundsError, match=r"executor\.feature_cache keeps") as error:
        go("fedavg", "all", 2)
    assert "\n" not in str(error.value)


def test_scores_in_the_run_and_the_test_use_kept_features(go, monkeypatch):
    kept = {"score": [], "test": []}

    def spy(name, function, position):
        def called(*arguments, **options):
            kept[name].append(arguments[position].features)
            return function(*arguments, **options)

        return called

    monkeypatch.setattr(site_executor.scoring, "score", spy("score", site_executor.scoring.score, 2))
    monkeypatch.setattr(site_executor.scoring, "evaluate_models", spy("test", site_executor.scoring.evaluate_models, 2))
    learning = "executor.learning_rate=1e-12"
    found = go("fedavg", "from:2", 2, learning)
    assert [type(features) for features in kept["score"]] == [Features] * 15, "6 in two rounds, 9 of the test"
    assert [type(features) for features in kept["test"]] == [Features] * 3
    plain = go("fedavg", "from:2", 0, learning)
    scores = [
        {site: test["common"]["exact"]["accuracy"] for site, test in result.summary["records"].items()}
        for result in (found, plain)
    ]
    assert scores[0] == pytest.approx(scores[1], abs=0.2)


def test_child_processes_share_kept_features(go, assert_same_run, monkeypatch):
    plain = go("ssfl", "from:2", 2)
    monkeypatch.setenv("GRANDROUNDS_ISOLATION", "process")
    assert_same_run(go("ssfl", "from:2", 2), plain)


def test_a_resumed_run_goes_on_with_kept_features(go, run, assert_same_run, hospitals, tmp_path):
    whole = go("ssfl", "from:2", 2)
    cut = small("ssfl", "from:2", 2)
    arguments = {"event": "_round_done", "round_number": 1, "party": "server", "hard": False}
    cut.server["components"].append({"id": "cut", "path": "faulty.Interrupt", "args": arguments})
    with pytest.raises(KeyboardInterrupt):
        run(cut, tmp_path, SITES, sites_dir=hospitals)
    computed = {path: path.read_bytes() for path in tmp_path.rglob("*.computed")}
    assert len(computed) >= 6, "weak, strong and unchanged views"
    resumed = run(small("ssfl", "from:2", 2), tmp_path, SITES, sites_dir=hospitals)
    assert resumed.summary["rounds_done"] == 2
    assert_same_run(resumed, whole)
    assert not list(tmp_path.rglob("*.computed"))


def test_named_weights_with_frozen_statistics_start_all_sites(go, tmp_path, monkeypatch):
    monkeypatch.setenv("GRANDROUNDS_WEIGHTS", str(tmp_path / "weights"))
    start = initial("all", seed=5).state_dict()
    torch.save(start, tmp_path / "start.pt")
    add_file(tmp_path / "start.pt", "start", "spread", "MIT")
    options = ["problem.weights=start", "problem.norm=frozen", "executor.learning_rate=1e-12"]
    found = go("fedavg", "from:2", 0, *options)
    assert found.summary["configuration"]["problem"]["intensities"] == "spread", "what the file declares"
    for name, tensor in found.models["last"].items():
        torch.testing.assert_close(tensor, start[name], rtol=0, atol=1e-6)
        assert not is_running_statistic(name)


def test_the_export_is_the_whole_network_with_the_initial_frozen_layers(go, hospitals, tmp_path):
    found = go("fedavg", "from:2", 0, "problem.norm=group", "problem.intensities=spread")
    out = tmp_path / "model"
    export(found.workspace, out=out)
    state = torch.load(out / "bundle" / "models" / "model.pt", weights_only=True)
    whole = initial("all").state_dict()
    frozen = [name for name in whole if name.startswith(FROZEN)]
    assert frozen
    assert all(torch.equal(state[name], whole[name]) for name in frozen)
    trained = found.models["selected"]
    assert all(torch.equal(state[name], tensor) for name, tensor in trained.items())
    assert not torch.equal(trained["classifier.weight"], whole["classifier.weight"])

    network = torch.jit.load(out / "bundle" / "models" / "model.ts")
    card = json.loads((out / "model_card.json").read_text())
    assert card["training"]["trained"] == {"layers": "from:2", "norm": "group"}
    assert card["training"]["frozen_sha256"] == found.summary["configuration"]["frozen"]
    assert "spread" in card["preprocessing"]["intensity"]
    for site in SITES:
        location = locate_dataset(site, "phantom", [hospitals])
        data = load_site_data(
            location, Problem.from_dict(found.summary["configuration"]["problem"]), tmp_path / "cache"
        )
        rows = data.rows("test")
        right = predict(network, tensors_of(data.images), rows).risks.argmax(dim=1).numpy() == data.labels[rows]
        assert np.mean(right) == pytest.approx(found.summary["records"][site]["common"]["exact"]["accuracy"])


@pytest.mark.parametrize("trainable", ["from:2", "head"])
def test_a_head_of_several_depths_computes_the_same_in_every_format(go, hospitals, tmp_path, trainable):
    runtime = pytest.importorskip("onnxruntime")
    safetensors = pytest.importorskip("safetensors.torch")
    found = go("fedavg", trainable, 2, "problem.head=depths")
    export(found.workspace, out=tmp_path, formats="torchscript,onnx")
    location = locate_dataset("site-1", "phantom", [hospitals])
    data = load_site_data(location, Problem.from_dict(found.summary["configuration"]["problem"]), tmp_path / "cache")
    rows = data.rows("test")
    images = tensors_of(data.images)(rows)
    logits = {}
    script = torch.jit.load(tmp_path / "bundle" / "models" / "model.ts")
    script.load_state_dict({entry: torch.zeros_like(value) for entry, value in script.state_dict().items()})
    script.load_state_dict(torch.load(tmp_path / "bundle" / "models" / "model.pt", weights_only=True))
    problem = Problem.from_dict(found.summary["configuration"]["problem"])
    own = build_model(problem.model_spec(pretrained=False).as_whole(), seed=5).eval()
    own.load_state_dict(safetensors.load_file(tmp_path / "model.safetensors"))
    with torch.no_grad():
        logits |= {"bundle": script(images).numpy(), "safetensors": own(images).numpy()}
    session = runtime.InferenceSession(str(tmp_path / "model.onnx"))
    answers = {"onnx": session.run(["risk", "decision"], {"images": images.numpy()})}
    answers["torchscript"] = [one.detach().numpy() for one in torch.jit.load(tmp_path / "model.ts")(images)]
    assert np.ptp(logits["bundle"], axis=0).max() > 1e-3
    for name, values in logits.items():
        np.testing.assert_allclose(values, logits["bundle"], rtol=1e-4, atol=1e-5, err_msg=name)
    right = logits["bundle"].argmax(axis=1) == data.labels[rows]
    assert np.mean(right) == pytest.approx(found.summary["records"]["site-1"]["common"]["exact"]["accuracy"])
    _, probabilities, _ = predict_with(found.workspace, data.images[rows], {})
    expected = torch.from_numpy(logits["bundle"]).softmax(dim=1).numpy()
    for both in (*answers.values(), [probabilities]):  # this training has no other risks than its decisions
        for one in both:
            np.testing.assert_allclose(one, expected, rtol=1e-3, atol=1e-5)
