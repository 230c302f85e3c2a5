"""What a Python user has at hand is taken, or refused with the name of the argument and what to give."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from nvflare.job_config.api import FedJob
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import grandrounds as gr
from grandrounds.evaluation.metrics import OWN_METRICS
from grandrounds.models.backbones.own import OWN_BACKBONES

CLASSES = ["melanoma", "nevus"]
SIDE = 64
SMALL = {"executor.steps": 1, "executor.batch_size": 2}


class Network(nn.Module):
    """A network as its author writes it."""

    def __init__(self, classes=2, channels=3):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(channels, 4, 3, stride=4), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.last = nn.Linear(4, classes)

    def forward(self, images):
        return self.last(self.features(images))


def meta_tensor(values):
    """MONAI's tensor; to import MONAI takes seconds, which the collection of tests need not spend."""
    from monai.data import MetaTensor

    return MetaTensor(values)


class Accuracy(nn.Module):
    """An object that computes a score, like those of torchmetrics."""

    def forward(self, predicted, labels):
        return (predicted == labels).float().mean()


@pytest.fixture(scope="module")
def at_hand(tmp_path_factory):
    """Images of two sites in folders, the same as a table, as arrays and as data sets, and a finished run."""
    folder = tmp_path_factory.mktemp("objects")
    pixels = np.random.default_rng(1).integers(0, 256, (2, 2, 10, SIDE, SIDE, 3), dtype=np.uint8)
    rows = []
    for (site, label, number), image in zip(np.ndindex(2, 2, 10), pixels.reshape(-1, SIDE, SIDE, 3), strict=True):
        name = f"site-{site}/{CLASSES[label]}/{site}{label}{number}.png"
        (folder / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / "images" / name)
        rows.append(
            {"image": name, "label": CLASSES[label], "site": f"site-{site}", "patient": f"{site}{label}{number}"}
        )
    frame = pd.DataFrame(rows)
    sites = gr.Sites.from_dataframe(frame, folder / "images", folder / "sites")

    def run(job="fedavg", where=sites, **arguments):
        given = {
            "rounds": 1,
            "image_size": 32,
            "backbone": "compact",
            "options": SMALL,
            "workspace": folder / "run",
            **arguments,
        }
        return gr.run(job, where, progress=False, reference=False, overwrite=True, **given)

    pixels = pixels.reshape(-1, SIDE, SIDE, 3)[:2]
    batch = torch.from_numpy(pixels)
    return SimpleNamespace(
        folder=folder,
        images=folder / "images",
        files=[folder / "images" / name for name in frame["image"][:2]],
        frame=frame,
        sites=sites,
        run=run,
        sweep=partial(gr.sweep, sites=sites, workspace=folder / "sweep", progress=False),
        evaluate=partial(gr.evaluate, progress=False, allow_overlap=True),
        done=run(workspace=folder / "done"),
        pixels=pixels,
        batch=batch,
        pictures=[Image.fromarray(one) for one in pixels],
        dataset=TensorDataset(batch, torch.zeros(2)),
    )


PREDICTED = {
    "a path": lambda had: had.files[0],
    "text": lambda had: str(had.files[0]),
    "a list of paths": lambda had: had.files,
    "a tuple of paths": lambda had: tuple(had.files),
    "a generator of paths": lambda had: iter(had.files),
    "a column of paths": lambda had: pd.Series(had.files, index=[7, 8]),
    "a PIL image": lambda had: had.pictures[0],
    "a list of PIL images": lambda had: had.pictures,
    "an array": lambda had: had.pixels,
    "an array of one image": lambda had: had.pixels[0],
    "a tensor": lambda had: had.batch,
    "a tensor, channels first": lambda had: had.batch.permute(0, 3, 1, 2),
    "a tensor of one image": lambda had: had.batch[0],
    "a tensor of one image, channels first": lambda had: had.batch[0].permute(2, 0, 1),
    "a MetaTensor": lambda had: meta_tensor(had.batch.permute(0, 3, 1, 2)),
    "a MetaTensor of one image": lambda had: meta_tensor(had.batch[0].permute(2, 0, 1)),
    "a list of MetaTensors": lambda had: [meta_tensor(one.permute(2, 0, 1)) for one in had.batch],
}


@pytest.mark.parametrize("objects", PREDICTED.values(), ids=PREDICTED)
def test_the_same_images_have_the_same_prediction(at_hand, objects):
    found = at_hand.done.predict(objects(at_hand))[CLASSES].to_numpy()
    expected = at_hand.done.predict(at_hand.files)[CLASSES].to_numpy()
    assert abs(expected[0] - expected[1]).max() > 1e-5
    assert found == pytest.approx(expected[: len(found)], abs=1e-6)


@pytest.mark.parametrize("image", [np.zeros((8, 8), np.uint8), torch.zeros(1, 8, 8, dtype=torch.uint8)])
def test_a_grey_image_is_one(at_hand, image):
    assert list(at_hand.done.predict(image).index) == ["0"]


def sites_of(had, out, **changes):
    return gr.Sites.from_manifest(had.frame.assign(**changes), had.images, had.folder / out)


SITES = {
    "a folder": lambda had: gr.Sites.from_folders(str(had.images), had.folder / "a", warn=False),
    "a DataFrame": lambda had: sites_of(had, "b"),
    "a DataFrame of Paths": lambda had: sites_of(had, "c", image=[*map(had.images.joinpath, had.frame["image"])]),
    "a categorical column": lambda had: sites_of(had, "d", label=had.frame["label"].astype("category")),
    "columns by a dict": lambda had: gr.Sites.from_manifest(
        had.frame.rename(columns={"image": "file"}), had.images, had.folder / "e", columns={"image": "file"}
    ),
    "labels by a dict": lambda had: gr.Sites.from_manifest(
        had.frame.replace("melanoma", "mel"), had.images, had.folder / "f", label_map={"mel": "melanoma"}
    ),
}


@pytest.mark.parametrize("make", SITES.values(), ids=SITES)
def test_sites_of_the_same_images_are_the_same(at_hand, make):
    found = make(at_hand)
    assert found.names == ("site-0", "site-1")
    assert found.counts().sort_index(axis=1).equals(at_hand.sites.counts().sort_index(axis=1))


def test_a_class_is_a_network_by_its_name(at_hand, monkeypatch):
    monkeypatch.setattr(OWN_BACKBONES, "entries", dict(OWN_BACKBONES.entries))
    gr.register_backbone("network", stride=4)(Network)
    found = at_hand.run(backbone="network")
    assert isinstance(found.model.encoder, Network)
    assert len(found.predict(at_hand.pixels)) == 2


def test_a_network_is_a_backbone(at_hand, monkeypatch):
    monkeypatch.setattr(OWN_BACKBONES, "entries", dict(OWN_BACKBONES.entries))
    found = at_hand.run(backbone=Network(), image_size=64)
    assert isinstance(found.model.encoder, Network)


def test_an_object_that_scores_is_a_metric_in_a_function(at_hand, monkeypatch):
    monkeypatch.setattr(OWN_METRICS, "entries", dict(OWN_METRICS.entries))
    score = Accuracy()

    @gr.register_metric("exactness")
    def exactness(labels, probabilities):
        return float(score(torch.tensor(probabilities.argmax(1)), torch.tensor(labels)))

    history = at_hand.run(options={**SMALL, "controller.selection_metric": "exactness"}).history()
    assert history["validation.exactness"].dropna().tolist() == pytest.approx(
        history["validation.accuracy"].dropna().tolist()
    )


@pytest.mark.parametrize("backbone", ["monai:resnet10", "torchvision:shufflenet_v2_x0_5", "timm:test_resnet"])
def test_a_network_of_a_library_runs_by_its_name(at_hand, backbone):
    if backbone.startswith("timm"):
        pytest.importorskip("timm")
    found = at_hand.run(backbone=backbone, image_size=SIDE)
    assert found.summary["configuration"]["problem"]["backbone"] == backbone
    assert len(found.predict(at_hand.pixels)) == 2


def test_a_run_its_workspace_and_a_partition_s_folder_are_taken_alike(at_hand):
    for run, place in ((at_hand.done, at_hand.sites), (str(at_hand.folder / "done"), str(at_hand.sites.folder))):
        found = at_hand.evaluate(run, place).scores()
        assert found.loc["pooled", "accuracy"] == at_hand.done.scores().loc["pooled", "accuracy"]
        assert gr.report(run, at_hand.folder / "report", sites=place, progress=False).is_file()
    assert gr.Run(at_hand.folder / "done", at_hand.sites.folder).sites == at_hand.sites


NAME = r"must be text.*, got .*; give a name: gr\.register_backbone"
FRAME = r"must be a path, got \w+; of a DataFrame make sites by Sites\.from_dataframe"
NETWORK = r"backbone must be the name of a network or a torch\.nn\.Module, got {}"
METHOD = "a method must be a path, got {}; name it, such as fedavg"
IMAGE = "an image must be a path, got {}; or an 8-bit array, a tensor or a PIL image"
PIXELS = r"images must be 8-bit arrays of shape .*; got {} of shape"
REFUSED = {
    "run a class as method": (lambda had: had.run(Network), METHOD.format("type")),
    "run a DataFrame as method": (lambda had: had.run(had.frame), METHOD.format("DataFrame")),
    "run a recipe as method": (lambda had: had.run(gr.recipe("fedavg")), METHOD.format("JobRecipe")),
    "run a FedJob": (lambda had: had.run(FedJob("own")), METHOD.format("FedJob")),
    "run a network's class": (lambda had: had.run(backbone=Network), NETWORK.format("type")),
    "run a function": (lambda had: had.run(backbone=lambda classes, channels: Network()), NETWORK.format("function")),
    "run a number as network": (lambda had: had.run(backbone=3), NETWORK.format("int")),
    "run an unknown network": (lambda had: had.run(backbone="monai:DenseNet12"), "did you mean monai:DenseNet121"),
    "run a metric": (lambda had: had.run(options={"controller.selection_metric": Accuracy()}), f"metric {NAME}"),
    "run a DataFrame": (lambda had: had.run(where=had.frame), FRAME),
    "run a data set": (lambda had: had.run(where=had.dataset), FRAME),
    "run a loader": (lambda had: had.run(where=DataLoader(had.dataset)), FRAME),
    "run bytes": (lambda had: had.run(where=b"sites"), FRAME),
    "run true sites": (lambda had: had.run(where=True), "number of sites must be an integer or null, got True"),
    "run options as text": (lambda had: had.run(options="steps=1"), r"options must be a mapping such as .*got str"),
    "run an option's number": (lambda had: had.run(options={3: 1}), "3: expected part.option"),
    "run an engine": (lambda had: gr.Execution(engine=Network), "engine must be in-process or flare, got"),
    "run workers as text": (lambda had: gr.Execution(workers="2"), "workers must be an integer or null, got '2'"),
    "run threads as text": (lambda had: gr.Execution("flare", threads="2"), "threads must be an integer or null"),
    "run a seed as tensor": (lambda had: had.run(seed=torch.tensor(3)), r"controller\.seed must be an integer"),
    "sites of a data set": (lambda had: gr.Sites.from_folders(had.dataset), FRAME),
    "sites of PIL images": (lambda had: gr.Sites.from_folders(had.pictures), FRAME),
    "sites into a number": (
        lambda had: gr.Sites.from_folders(had.images, 3),
        "out, the folder .* must be a path, got int",
    ),
    "sites of a column": (lambda had: gr.Sites.from_manifest(had.frame["image"]), "a pandas DataFrame, got Series"),
    "sites of a list": (lambda had: gr.Sites.from_manifest([("a.png", "nevus")]), "a pandas DataFrame, got list"),
    "sites of images in a list": (
        lambda had: gr.Sites.from_manifest(had.frame, had.files),
        "a folder of images must be a path, got list",
    ),
    "sites of images in a list, into a folder": (
        lambda had: gr.Sites.from_manifest(had.frame, had.files, had.folder / "x"),
        "root must be a path, got list; give the folder or archive of the images",
    ),
    "sites by text": (lambda had: gr.Sites.synthetic("3"), "number of sites must be an integer or null, got '3'"),
    "partition own images": (lambda had: gr.partition("manifest", had.images, "x"), "by Sites.from_source"),
    "partition a data set": (lambda had: gr.partition(had.dataset, had.images, "x"), "dataset must be one of ham10000"),
    "open nothing": (lambda had: gr.Run(None), "the workspace of a run must be a path, got NoneType"),
    "predict nothing": (lambda had: had.done.predict(None), IMAGE.format("NoneType")),
    "predict bytes": (lambda had: had.done.predict(had.files[0].read_bytes()), IMAGE.format("bytes")),
    "predict a DataFrame": (lambda had: had.done.predict(had.frame), IMAGE.format("DataFrame")),
    "predict floats to 255": (lambda had: had.done.predict(had.pixels / 1), "must have values from 0 to 1, got"),
    "predict a MetaTensor around 0": (
        lambda had: had.done.predict(meta_tensor(had.batch / 255 - 0.5)),
        "must have values from 0 to 1, got",
    ),
    "predict bfloat16": (lambda had: had.done.predict(had.batch.bfloat16()), PIXELS.format("bfloat16")),
    "predict a sparse tensor": (lambda had: had.done.predict(had.batch.to_sparse()), PIXELS.format("uint8")),
    "predict from a number": (lambda had: had.done.predict(had.pixels, 0.5), "thresholds must be a mapping such as"),
    "evaluate a network": (
        lambda had: had.evaluate(Network(), had.sites),
        "a run must be a path, got Network; give a Run",
    ),
    "evaluate on a DataFrame": (lambda had: had.evaluate(had.done, had.frame), FRAME),
    "evaluate on nothing": (lambda had: had.evaluate(had.done, None), FRAME),
    "evaluate one class": (
        lambda had: had.evaluate(had.done, had.sites, positive="nevus"),
        "positive must be a list of names or null, got 'nevus'",
    ),
    "evaluate at text": (
        lambda had: had.evaluate(had.done, had.sites, threshold=".5"),
        "threshold must be a number or null",
    ),
    "evaluate one prevalence": (
        lambda had: had.evaluate(had.done, had.sites, prevalences=0.1),
        "prevalences must be a list",
    ),
    "evaluate groups in a list": (
        lambda had: had.evaluate(had.done, had.sites, groups=["nevus"]),
        "groups must be a mapping",
    ),
    "evaluate under a number": (
        lambda had: had.evaluate(had.done, had.sites, name=3),
        "name must be text or null, got 3",
    ),
    "register a class without a name": (lambda had: gr.register_backbone(Network), "a backbone's name is text of"),
    "register a network": (
        lambda had: gr.register_backbone("own")(Network()),
        "own must be a function or a class, got Network",
    ),
    "register a partial": (
        lambda had: gr.register_backbone("own")(partial(Network)),
        "must be a function or a class, got partial",
    ),
    "register a head": (
        lambda had: gr.register_backbone("own", head=nn.Linear(1, 2)),
        "head of backbone own must be text",
    ),
    "register a stride as text": (
        lambda had: gr.register_backbone("own", stride="8"),
        "stride of .* must be an integer",
    ),
    "register a metric object": (
        lambda had: gr.register_metric("own")(Accuracy()),
        "metric own must be a function or a class, got Accuracy; write one that uses it",
    ),
    "register a metric without a name": (lambda had: gr.register_metric(max), "a metric's name is text of"),
    "register a data set": (
        lambda had: gr.register_dataset("own")(had.dataset),
        "must be a function or a class, got Tensor",
    ),
    "register a DataFrame": (
        lambda had: gr.register_dataset("own")(had.frame),
        "must be a function or a class, got Data",
    ),
    "register options": (lambda had: gr.register_dataset("own", options={}), "a class derived from ReaderOptions"),
    "register a method of a network": (
        lambda had: gr.register_method("own", controller=Network),
        "derived from RoundController",
    ),
    "register a task by a number": (lambda had: gr.register_task(3), "a task's name is text of"),
    "sweep a number": (lambda had: had.sweep(3), METHOD.format("int")),
    "sweep nothing": (lambda had: had.sweep(None), METHOD.format("NoneType")),
    "sweep networks": (
        lambda had: had.sweep("fedavg", vary={"problem.backbone": [Network]}),
        f"problem.backbone {NAME}",
    ),
    "sweep one value": (
        lambda had: had.sweep("fedavg", vary={"problem.backbone": "resnet18"}),
        "vary: problem.backbone must have a list of values, got 'resnet18'",
    ),
    "sweep a list": (lambda had: had.sweep("fedavg", vary=["executor.steps"]), "vary must be a mapping such as"),
    "sweep one seed": (lambda had: had.sweep("fedavg", seeds=3), "seeds must be a list of different numbers"),
    "sweep into nothing": (lambda had: had.sweep("fedavg", workspace=None), "workspace must be a path, got NoneType"),
    "a recipe of a class": (lambda had: gr.recipe(Network), METHOD.format("type")),
    "a recipe with a class": (lambda had: gr.recipe("fedavg", backbone=Network), f"problem.backbone {NAME}"),
    "a recipe at Sites": (lambda had: gr.recipe("fedavg", sites=had.sites), "sites must be a list of names, got Sites"),
    "a report on a DataFrame": (
        lambda had: gr.report(had.frame, "x"),
        "a run must be a path, got DataFrame; give a Run",
    ),
    "a report into nothing": (lambda had: had.done.report(None), "out, the folder .* must be a path, got NoneType"),
    "an export into nothing": (lambda had: had.done.export(None), "out, the folder .* must be a path, got NoneType"),
    "a report on a number": (lambda had: gr.report(3, had.folder / "x"), "a run must be a path, got int; give a Run"),
}


@pytest.mark.parametrize(("attempt", "message"), REFUSED.values(), ids=REFUSED)
def test_other_objects_are_refused_with_what_to_give(at_hand, attempt, message):
    with pytest.raises(gr.ConfigurationError, match=message):
        attempt(at_hand)
