"""Small federations for tests: hospitals with drawn images, a job that is quick with them, and what a run has left."""

import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from grandrounds.data.partition.phantom_site import phantom_site
from grandrounds.deployment.jobs import load_job
from grandrounds.deployment.presets import parsed, with_preset
from grandrounds.deployment.simulate import Execution, simulate
from grandrounds.federation.server.record import read_events
from grandrounds.models.backbones.own import OWN_BACKBONES, register_backbone

SIDE = 32
SMALL_NETWORKS = {"small": 12, "narrow": 8, "wide": 24}
"""Networks of two layers and their width: those of the package take up to twenty times as long."""
QUICK = {
    "fed_align_cl": [
        *("executor.iterations=4", "executor.pace=2", "executor.warm_up=0"),
        "executor.noise_source=seeded",
    ],
    "fedirm": [
        *("controller.unlabelled_start=1", "controller.min_support=2", "executor.min_support=2"),
        *("executor.steps=2", "executor.batch_size=8", "executor.uncertainty_threshold=1.3"),
    ],
    "mdhfl": ["executor.pretrain_epochs=0.5", "executor.local_epochs=0.5", "executor.batch_size=8"],
    "statistics": [],
}
QUICK["feddf"] = [
    *(*QUICK["mdhfl"], "controller.server_device=cpu"),
    *("controller.distillation_steps=2", "controller.distillation_batch=16"),
]
QUICK["rscfed"] = QUICK["fedirm"]
QUICK["ridge"] = []
OUTSIDE = {name: str(Path(__file__).parents[1] / "examples" / name / "job") for name in ("feddf", "rscfed")}
"""Jobs that do not come with the package, by their names."""
ANY_METHOD = ["executor.steps=2", "executor.batch_size=8"]


@dataclass(frozen=True)
class Federation:
    """Sites with drawn images and a small job for them; calling it runs the job.

    Attributes:
        name: of the job.
        sites: their names.
        folder: with one folder per site.
        options: assignments that each of its jobs has, before those of a test.
    """

    name: str
    sites: Sequence[str]
    folder: Path | None = None
    options: Sequence[str] = field(default=())

    def job(self, *assignments: str, name=None, preset=None, path=None, **arguments: Any):
        """The job with further options; ``path`` puts another executor in, which gets the arguments as well."""
        name = name or self.name
        quick = [*QUICK.get(name, ANY_METHOD), "executor.device=cpu", *self.options]
        job = load_job(OUTSIDE.get(name, name))
        job = with_preset(job, preset, parsed(job, [*quick, *assignments]))
        if path:
            entry = job.client["executors"][0]["executor"]
            entry["path"] = path
            entry["args"] |= arguments
        return job

    def __call__(
        self, workspace, *assignments: str, job=None, name=None, preset=None, sites=None, folder=None, **execution
    ):
        """Run the job in a workspace, with some of the sites, or with another folder of them."""
        job = job or self.job(*assignments, name=name, preset=preset)
        overlap = execution.pop("allow_overlap", False)
        how = Execution(**execution)
        simulate(job, workspace, list(sites or self.sites), folder or self.folder, how, allow_overlap=overlap)
        return outcome(workspace)


def draw_hospitals(
    folder: Path,
    sites: Sequence[str],
    images: int | Mapping[str, int] = 48,
    labelled: float | Mapping[str, float] = 1.0,
) -> Path:
    """Draw the images of each site; numbers may differ between sites."""
    for site in sites:
        many, share = (value if not isinstance(value, Mapping) else value[site] for value in (images, labelled))
        phantom_site(site, folder, size=SIDE, images=many, labelled=share)
    return folder


def give_public_images(folder: Path, site: str, images: int, drawn_for: str = "public") -> None:
    """Give a site public images: those drawn for one name are the same everywhere."""
    drawn = phantom_site(drawn_for, folder.with_name(f"{folder.name}-drawn"), size=SIDE, images=images).parent
    shutil.copytree(drawn, folder / site / "public", dirs_exist_ok=True)
    own = {"manifest": "manifest.csv", "root": "images.npz"}
    public = {"manifest": "public/manifest.csv", "root": "public/images.npz", "public": True}
    (folder / site / "grandrounds.json").write_text(json.dumps({"datasets": {"phantom": own, "public": public}}))


def await_true(condition: Callable[[], object], seconds: float = 900.0) -> None:
    """Wait for a condition, long enough for a machine with much other work."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def outcome(workspace: Path) -> SimpleNamespace:
    """What a run left in its results."""
    results = workspace / "results"
    return SimpleNamespace(
        summary=json.loads((results / "summary.json").read_text()),
        models={path.stem: torch.load(path, weights_only=True) for path in results.glob("*.pt")},
        results=results,
        record=next((workspace / "state").iterdir()) / "server",
    )


def as_between_kits(workspace: Path) -> None:
    """Let another run or other sites go on in a workspace, as kits do, which have no folder of all sites."""
    shutil.rmtree(workspace / "job")


def answers(found):
    """The metrics of training answers by round and site."""
    return {
        (event["round"], event["site"]): event["metrics"]
        for event in read_events(found.results)
        if event["event"] == "answer" and event["task"] == "train"
    }


def kept(found, site, number):
    """What a method has kept at a site after a round."""
    path = found.record.parent / site / "state" / f"round_{number:05}.pt"
    return torch.load(path, weights_only=True)["content"]


def cut(job, round_number, event="_round_done", party="server"):
    """The job with an interruption in one round, at the server or at a site."""
    arguments = {"event": event, "round_number": round_number, "party": party, "hard": False}
    configuration = job.server if party == "server" else job.client
    configuration["components"].append({"id": "cut", "path": "faulty.Interrupt", "args": arguments})
    return job


def two_layers(width):
    """A network of two layers, as plug-ins register one."""

    def make(classes, channels):
        layers = [nn.Conv2d(channels, width, 3, 2, 1), nn.BatchNorm2d(width), nn.ReLU()]
        layers += [nn.Conv2d(width, width, 3, 2, 1), nn.BatchNorm2d(width), nn.ReLU()]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))

    return make


@contextmanager
def registered_small_networks():
    """The small networks are known in this process, also within another such block."""
    added = [name for name in SMALL_NETWORKS if name not in OWN_BACKBONES.entries]
    for name in added:
        register_backbone(name, stride=4)(two_layers(SMALL_NETWORKS[name]))
    try:
        yield
    finally:
        for name in added:
            OWN_BACKBONES.entries.pop(name, None)


def write_pictures(folder, names):
    """Write images of four grey pixels, each another, under these names; what they are is seen from their bytes."""
    for number, name in enumerate(names):
        path = Path(folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"P5\n2 2\n255\n" + (number + 1).to_bytes(4, "big"))


def provisioned_elsewhere(folder, sites):
    """Kits as ``grandrounds provision`` writes them, of a server whose name no machine here has."""
    from grandrounds.deployment.kit import provision

    project = provision.local_project(provision.read_project(provision.PROJECT), sites, 8002)
    for entry in project["participants"]:
        if entry["type"] == "server":
            entry |= {"host_names": ["fl.consortium.example"], "default_host": "fl.consortium.example"}
    provision.write_project(project, folder / "project.yml")
    provision.provision(folder / "project.yml", folder / "kits")
    return folder / "kits"
