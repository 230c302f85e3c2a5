"""What a site answers to a server of its own making does not depend on one picture, unless the answer is booked.

A site works twice on the same tasks, with and without one white picture in each part: on models that are made to fail for
it, and with code that raises an error where it sees it. Noise hides values of an update; its form, the names of all numbers,
the reply's code and reason, the size of the message and what the ledger has booked are seen or accounted for, so they must
be equal. Under the policy that lets exact updates and counts out, which says so, what is booked of the update must be, and,
for models, the code and the reason.
"""

import copy
import json
import os
import pickle
import shutil
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from grandrounds.data.partition.phantom_site import phantom_site
from grandrounds.deployment.jobs import load_job
from grandrounds.deployment.presets import with_options
from grandrounds.deployment.simulate import simulate
from grandrounds.errors import Fault, GrandRoundsError
from grandrounds.federation.engine import Site
from grandrounds.federation.site.context import SiteContext
from grandrounds.privacy.gate.audit import Reason
from grandrounds.privacy.gate.questions import ANSWERS_FOLDER
from grandrounds.privacy.ledger.ledger import Ledger
from grandrounds.protocol.messages import REASON_HEADER
from grandrounds.protocol.refusal import FINAL
from tests.federations import give_public_images
from tests.invariants.hostile_tasks import MODELS, drawn, hostile

OVERLAYS = Path(__file__).parents[2] / "provisioning" / "overlays"
SITE = "site-1"
ALONE = ["controller.min_sites=1", "executor.device=cpu"]
SMALL = [*ALONE, "controller.rounds=1", "problem.norm=group", "executor.steps=2", "executor.batch_size=64"]
JOBS = {
    "fedavg": [],
    "fedperl": ["executor.threshold=0.26", "controller.warm_up=0", "controller.peers=1", "controller.pa_min_peers=1"],
}
MUTUAL = [*ALONE, "controller.rounds=2", "executor.batch_size=64", f'executor.backbones={{"{SITE}": "compact"}}']
OTHERS = {
    "fed_align_cl": [*ALONE, "controller.rounds=1", "problem.norm=group"],
    "fedirm": SMALL,
    "local": SMALL,
    "local_fixmatch": SMALL,
    "mdhfl": MUTUAL,
    "ridge": ALONE,
    "ssfl": SMALL,
    "statistics": ALONE,
}
"""Jobs that are asked by fewer models."""
FEW = ["executor.steps=1", "executor.batch_size=16", "problem.backbone=compact"]
DRAWN = {**JOBS, "ssfl": ["executor.threshold=0.26"], "fedirm": []}
STRICT, STANDARD = "strict.json", "open.json"
CASES = [(name, overlay) for name in DRAWN for overlay in (STRICT, STANDARD) if (name, overlay) != ("fedirm", STRICT)]
"""Jobs and policies of the long form; the strict policy keeps what FedIRM needs."""
TASKS = {"train", "validate", "test"}
RAISES = "an error for one picture"


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
    assert header in {"", *Reason, *Fault} or header.startswith(FINAL)
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

    with pytest.MonkeyPatch.context() as patch, suppress(GrandRoundsError):
        patch.setattr(SiteContext, "views", looked_at)
        yield


def observed(job, folder, sites_dir, overlay, monkeypatch, models=MODELS):
    """All that is seen of the site's answers, by task and model, and the tasks in which the white picture was seen."""
    local = folder / "flare" / SITE / "local"
    local.mkdir(parents=True)
    policy = json.loads((OVERLAYS / overlay).read_text())
    policy["scopes"][0]["properties"]["grandrounds"]["target_epsilon"] = {"*": 1e6} if "strict" in overlay else {}
    policy["scopes"][0]["properties"]["grandrounds"]["scored_answers"] = 1_000_000
    (local / "privacy.json").write_text(json.dumps(policy))
    ledger = Ledger.create(local / "privacy", SITE)
    found, work, white, models_sent = {}, Site.work, set(), []

    def asked(site, task, message, server, name):
        # The same question would get the same answer, although the test has changed the code behind it.
        shutil.rmtree(local / "privacy" / ANSWERS_FOLDER, ignore_errors=True)
        before = len(ledger.content().bookings)
        reply = work(site, task, message, server)
        found[task, name] = seen(reply, ledger.content().bookings[before:])

    def questioned(site, task, message, server):
        if task in TASKS and task not in {name for name, _ in found}:
            models_sent.append(message)
            for name, change in models.items():
                asked(site, task, hostile(message, change, models_sent[0]), server, name)
            with raising(white, task):
                asked(site, task, copy.deepcopy(message), server, RAISES)
        return work(site, task, message, server)

    # A run ends where a policy keeps what it needs.
    with monkeypatch.context() as patch, suppress(GrandRoundsError):
        patch.setattr(Site, "work", questioned)
        simulate(job, folder, [SITE], sites_dir=sites_dir)
    return found, white


@pytest.fixture(scope="module")
def neighbours(tmp_path_factory):
    """Two folders of a site; in the second one picture of each part is white."""
    return two_sites([tmp_path_factory.mktemp(name) for name in ("without", "with")])


def two_sites(folders, images=120):
    """The same site in both folders; in the second one picture of each part is white."""
    for folder in folders:
        phantom_site(SITE, folder, images=images, size=32, labelled=1.0)
        give_public_images(folder, SITE, 32)
    place = folders[1] / SITE / "images.npz"
    lines = (folders[1] / SITE / "manifest.csv").read_text().splitlines()
    column = lines[0].split(",").index("split")
    splits = [line.split(",")[column] for line in lines[1:]]
    images = np.load(place)["images"]
    for part in ("train", "val", "test"):
        images[splits.index(part)] = 255
    np.savez(place, images=images)
    return folders


@pytest.mark.parametrize("overlay", [STRICT, STANDARD])
@pytest.mark.parametrize("name", JOBS)
def test_one_picture_changes_nothing_that_is_not_booked(name, overlay, neighbours, tmp_path, monkeypatch, shared_cache):
    job = with_options(load_job(name), [*SMALL, *JOBS[name]])
    (first, without), (second, white) = (
        observed(job, tmp_path / folder.name, folder, overlay, monkeypatch) for folder in neighbours
    )
    assert {task for task, _ in first} == {task for task, _ in second} == TASKS
    assert (without, white) == (set(), TASKS)
    if overlay == STANDARD:
        first, second = ({key: one.unless_released(key[1]) for key, one in found.items()} for found in (first, second))
    different = {key: (first[key], second[key]) for key in first if first[key] != second[key]}
    assert different == {}


@pytest.mark.parametrize("overlay", [STRICT, STANDARD])
@pytest.mark.parametrize("name", OTHERS)
def test_one_picture_changes_nothing_in_the_other_jobs(name, overlay, neighbours, tmp_path, monkeypatch, shared_cache):
    models = {key: MODELS[key] for key in ("as sent", "overflowing")}
    job = with_options(load_job(name), OTHERS[name]).checked()
    found, asked = differences(job, overlay, neighbours, tmp_path, monkeypatch, models)
    if name.startswith("local") and overlay == STANDARD:
        found.pop(("train", RAISES))  # of a model that stays nothing is booked, of its failure a whole update
    assert found == {}
    assert asked or overlay == STRICT or name == "ridge"


def test_every_job_is_asked():
    jobs = {path.parent.name for path in (OVERLAYS.parents[1] / "jobs").glob("*/meta.json")}
    assert jobs == {*JOBS, *OTHERS}


def differences(job, overlay, folders, place, monkeypatch, models):
    """The answers to the same tasks that differ between the two sites, and the number of tasks."""
    found = [observed(job, place / folder.name, folder, overlay, monkeypatch, models)[0] for folder in folders]
    first, second = found
    if overlay == STANDARD:
        first, second = ({key: one.unless_released(key[1]) for key, one in seen.items()} for seen in found)
    assert first.keys() == second.keys()
    return {key: (first[key], second[key]) for key in first if first[key] != second[key]}, len(first)


@pytest.mark.fuzz
def test_one_picture_changes_nothing_whatever_the_server_sends(tmp_path, monkeypatch, shared_cache):
    """Minutes; ``GRANDROUNDS_PAIRS`` changes the number of pairs of tasks, ``GRANDROUNDS_SEED`` the first seed."""
    wanted, seed = int(os.environ.get("GRANDROUNDS_PAIRS", "500")), int(os.environ.get("GRANDROUNDS_SEED", "1"))
    asked, different, by_kind = 0, {}, Counter()
    while asked < wanted:
        draw = np.random.default_rng(seed)
        name, overlay = CASES[draw.integers(len(CASES))]
        place = tmp_path / str(seed)
        folders = two_sites([place / side for side in ("without", "with")], images=80)
        models = {f"seed {seed}.{number}": drawn(1000 * seed + number) for number in range(50)}
        job = with_options(load_job(name), [*SMALL, *FEW, *DRAWN[name]])
        found, number = differences(job, overlay, folders, place, monkeypatch, models)
        different |= {(seed, name, overlay, *key): both for key, both in found.items()}
        for key, both in found.items():
            print("differs:", seed, name, overlay, key, both, flush=True)
        by_kind[name, overlay] += number
        asked, seed = asked + number, seed + 1
        print(f"{asked} pairs until seed {seed - 1}, {len(different)} differ; {dict(by_kind)}", flush=True)
        shutil.rmtree(place)
    assert different == {}
