"""What a site answers to a server of its own making does not depend on one picture, unless the answer is booked.

A site works twice on the same tasks, with and without one white picture in each part: on models that are made to fail for
it, and with code that raises an error where it sees it. Noise hides values of an update; its form, the names of all numbers,
the reply's code and reason, the size of the message and what the ledger has booked are seen or accounted for, so they must
be equal. Under the policy that lets exact updates and counts out, which says so, what is booked of the update must be, and,
for models, the code and the reason.
"""

import copy
import json
import pickle
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from nvflare.apis.shareable import ReservedHeaderKey

from grandrounds.data.partition.phantom_site import phantom_site
from grandrounds.deployment.assignments import with_options
from grandrounds.deployment.jobs import load_job
from grandrounds.deployment.simulate import simulate
from grandrounds.errors import Fault
from grandrounds.federation.parties import Site
from grandrounds.federation.site.context import SiteContext
from grandrounds.privacy.gate.audit import Reason
from grandrounds.privacy.ledger.ledger import Ledger
from grandrounds.protocol.messages import REASON_HEADER, Payload
from grandrounds.protocol.wire import decode_payload, encode_payload

OVERLAYS = Path(__file__).parents[2] / "provisioning" / "overlays"
SITE = "site-1"
SMALL = [
    *("controller.rounds=1", "controller.min_sites=1", "executor.steps=2", "executor.batch_size=64"),
    *("executor.device=cpu", "problem.norm=group"),
]
JOBS = {
    "fedavg": [],
    "fedperl": ["executor.threshold=0.26", "controller.warm_up=0", "controller.peers=1", "controller.pa_min_peers=1"],
}
TASKS = {"train", "validate", "test"}
RAISES = "an error for one picture"


def filled(value):
    return lambda tensor: torch.full_like(tensor, value)


def overflowing(tensor):
    """A model whose activations overflow for bright pictures, within the bound on weights."""
    return torch.full_like(tensor, 9e3)


def one_channel(tensor):
    """Dark pictures give small numbers, bright ones overflow in one channel."""
    changed = torch.zeros_like(tensor)
    changed.view(-1)[: max(1, changed.numel() // 4)] = 9e3
    return changed


MODELS = {
    "as sent": lambda tensor: tensor,
    "not a number": filled(float("nan")),
    "infinite": filled(float("inf")),
    "denormal": filled(1e-42),
    "overflowing": overflowing,
    "one channel": one_channel,
    "zero": filled(0.0),
    "another size": lambda tensor: torch.zeros((*tensor.shape, 2), dtype=tensor.dtype),
    "doubles": lambda tensor: tensor.double(),
}


@dataclass(frozen=True)
class Seen:
    """What a server sees of an answer, and what the site's ledger says of it."""

    code: str
    reason: str
    parts: dict
    size: int
    booked: list

    def unless_released(self, model):
        """What depends on no release without noise: the cost of the update, and whether and why a model was refused."""
        updates = [one for one in self.booked if one[0] == "update"]
        return (updates,) if model == RAISES else (self.code, self.reason, updates)


def hostile(message, change):
    """The task with another model."""
    payload = decode_payload(copy.deepcopy(message))
    parts = {
        name: {
            key: change(value) if isinstance(value, torch.Tensor) and value.is_floating_point() else value
            for key, value in part.items()
        }
        for name, part in payload.parts.items()
    }
    sent = encode_payload(Payload(payload.round_number, payload.values, parts))
    for header, value in message[ReservedHeaderKey.HEADERS].items():
        sent.set_header(header, value)
    return sent


def form(value):
    """Names, types and shapes, without numbers."""
    if isinstance(value, dict):
        return {key: form(one) for key, one in sorted(value.items())}
    if isinstance(value, torch.Tensor | np.ndarray):
        return str(value.dtype), tuple(value.shape), bool(np.isfinite(np.asarray(value, dtype=float)).all())
    return type(value).__name__


def seen(reply, bookings):
    content = reply.get("DXO", {})
    parts = {
        name: (part.data_kind, dict(part.meta or {}), form(part.data)) for name, part in content.get("data", {}).items()
    }
    header = reply.get_header(REASON_HEADER, "")
    assert header in {"", *Reason, *Fault}
    spendings = [(one.purpose.release, one.purpose.round_number, one.spending) for one in bookings]
    return Seen(str(reply.get_return_code()), header, parts, len(pickle.dumps(form(dict(content)))), spendings)


@contextmanager
def raising(tasks, task):
    """Within the block a view of a batch with a white picture is an error; the tasks with one are noted."""
    views = SiteContext.views

    def looked_at(context, rows, *arguments, **named):
        if bool((context.data.images[rows] == 255).all(axis=(1, 2, 3)).any()):
            tasks.add(task)
            raise RuntimeError("the picture is white")
        return views(context, rows, *arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SiteContext, "views", looked_at)
        yield


def observed(job, folder, sites_dir, overlay, monkeypatch):
    """All that is seen of the site's answers, by task and model, and the tasks in which the white picture was seen."""
    local = folder / "flare" / SITE / "local"
    local.mkdir(parents=True)
    policy = json.loads((OVERLAYS / overlay).read_text())
    policy["scopes"][0]["properties"]["grandrounds"]["target_epsilon"] = {"*": 1e6} if "strict" in overlay else {}
    (local / "privacy.json").write_text(json.dumps(policy))
    ledger = Ledger.create(local / "privacy", SITE)
    found, work, white = {}, Site.work, set()

    def asked(site, task, message, server, name):
        before = len(ledger.content().bookings)
        reply = work(site, task, message, server)
        found[task, name] = seen(reply, ledger.content().bookings[before:])

    def questioned(site, task, message, server):
        if task in TASKS and task not in {name for name, _ in found}:
            for name, change in MODELS.items():
                asked(site, task, hostile(message, change), server, name)
            with raising(white, task):
                asked(site, task, copy.deepcopy(message), server, RAISES)
        return work(site, task, message, server)

    with monkeypatch.context() as patch:
        patch.setattr(Site, "work", questioned)
        simulate(job, folder, [SITE], sites_dir=sites_dir)
    return found, white


@pytest.fixture(scope="module")
def neighbours(tmp_path_factory):
    """Two folders of a site; in the second one picture of each part is white."""
    folders = [tmp_path_factory.mktemp(name) for name in ("without", "with")]
    for folder in folders:
        phantom_site(SITE, folder, images=120, size=32, labelled=1.0)
    place = folders[1] / SITE / "images.npz"
    lines = (folders[1] / SITE / "manifest.csv").read_text().splitlines()
    column = lines[0].split(",").index("split")
    splits = [line.split(",")[column] for line in lines[1:]]
    images = np.load(place)["images"]
    for part in ("train", "val", "test"):
        images[splits.index(part)] = 255
    np.savez(place, images=images)
    return folders


@pytest.mark.parametrize("overlay", ["privacy_strict.json", "privacy.json"])
@pytest.mark.parametrize("name", JOBS)
def test_one_picture_changes_nothing_that_is_not_booked(name, overlay, neighbours, tmp_path, monkeypatch, shared_cache):
    job = with_options(load_job(name), [*SMALL, *JOBS[name]])
    (first, without), (second, white) = (
        observed(job, tmp_path / folder.name, folder, overlay, monkeypatch) for folder in neighbours
    )
    assert {task for task, _ in first} == {task for task, _ in second} == TASKS
    assert (without, white) == (set(), TASKS)
    if overlay == "privacy.json":
        first, second = ({key: one.unless_released(key[1]) for key, one in found.items()} for found in (first, second))
    different = {key: (first[key], second[key]) for key in first if first[key] != second[key]}
    assert different == {}
