"""A message or a checkpoint changes its form only with a new line in the table of versions, ``tests/golden/versions.json``.

Every job is run in this process. The names, types and numbers of axes in all that travels and in all that is kept are those
of ``tests/golden/forms.json``, of which the table has the digest by version. After a change raise ``PROTOCOL`` or
``CHECKPOINT_FORMAT``, run ``GRANDROUNDS_WRITE_GOLDEN=1 pytest tests/golden/test_versions.py -m ""`` and read the difference.
"""

import hashlib
import json
import os
import re
from pathlib import Path

import pytest
import torch
from nvflare.apis.dxo import DXO

from grandrounds.data.partition.phantom_site import phantom_site
from grandrounds.deployment.jobs import job_names
from grandrounds.deployment.kit.shipped import shipped_content
from grandrounds.federation.checkpoints import CHECKPOINT_FORMAT
from grandrounds.federation.engine import Site
from grandrounds.privacy.ledger.ledger import Ledger
from grandrounds.protocol.messages import DXO_KEY, PROTOCOL
from tests.federations import OUTSIDE, SIDE, Federation, draw_hospitals, give_public_images, registered_small_networks

FOLDER = Path(__file__).parent
FORMS, VERSIONS = FOLDER / "forms.json", FOLDER / "versions.json"
CURRENT = {"messages": PROTOCOL, "checkpoints": str(CHECKPOINT_FORMAT)}
SITES = ["site-1", "site-2", "site-3"]
UNLABELLED = "site-4"
SECURE, ROUNDS, SMALL = "controller.aggregation=secure", "controller.rounds=2", "problem.backbone=small"
PEERS = ["controller.warm_up=1", "controller.peers=1", "controller.pa_min_peers=1", "executor.threshold=0.26"]
MUTUAL = ['executor.backbones={"site-1": "small", "site-2": "narrow", "site-3": "small"}', "controller.rounds=3"]
RUNS = {
    "fedavg": [SMALL, ROUNDS, "controller.update_precision=float16"],
    "fedavg under sums": [SMALL, ROUNDS, SECURE],
    "fedavg under open": [SMALL, ROUNDS],
    "ssfl": [SMALL, ROUNDS, *PEERS[3:]],
    "fedperl": [SMALL, ROUNDS, "executor.optimizer=kept", *PEERS],
    "local": [SMALL, ROUNDS],
    "local_fixmatch": [SMALL, ROUNDS, *PEERS[3:]],
    "fedirm": [SMALL, ROUNDS],
    "fedirm under sums": [SMALL, ROUNDS, SECURE],
    "rscfed": [SMALL, ROUNDS],
    "fed_align_cl": [SMALL, ROUNDS],
    "mdhfl": [*MUTUAL, "controller.public_batch=32"],
    "feddf": MUTUAL,
    "ridge": [],
    "ridge under sums": [SECURE],
    "ridge under open": [],
    "statistics": [],
}
EVERY = "every run"
TOLD = ("kind", "release", "treated", "precision")
"""Fields whose values are a part of the form."""
NAMES = {
    r"site-\d": "SITE",
    r".+\.(weight|bias|running_mean|running_var|num_batches_tracked)": "LAYER",
    r"[0-9a-f]{64}": "DIGEST",
    r"clustered|irregular|ring": "CLASS",
    r"((own|own_last|common|validation)\.)?((balanced_)?accuracy|(auc|f1|precision|recall)_\w+|log_\w+)": "SCORE",
    r"(.*[./@])?\d+": "NUMBER",
}
"""What stands in a form for keys that another run, network or data set has otherwise."""
ELSEWHERE = {"executors": ": options", "executor": ": options", "param_groups": ": options of torch"}
"""Forms of others: a job's options are compared by name where both parties know them."""


def form(value):
    """The lines of a value's form, by path."""
    if isinstance(value, torch.Tensor):
        return {f": {str(value.dtype).removeprefix('torch.')} of {value.dim()} axes"}
    if isinstance(value, DXO):
        return form({"kind": str(value.data_kind), "meta": value.meta, "data": value.data})
    if isinstance(value, list | tuple):
        return {f"[]{line}" for entry in value for line in form(entry)} or {": empty"}
    if not isinstance(value, dict):
        return {f": {type(value).__name__}"}
    lines = set()
    for key, entry in value.items():
        name = next((stands for pattern, stands in NAMES.items() if re.fullmatch(pattern, str(key))), key)
        told = {f": {entry}"} if key in TOLD and isinstance(entry, str) else form(entry)
        told = {ELSEWHERE[key]} if key in ELSEWHERE else told
        lines |= {f".{name}{line}" for line in told}
    return lines or {": empty"}


def digest(forms):
    """SHA-256 of the forms, in one order."""
    return hashlib.sha256(json.dumps(forms, sort_keys=True).encode()).hexdigest()


def by_run(grouped):
    """The lines of each run, of those that are listed once with the runs that have them."""
    found = {name: set() for name in RUNS}
    for runs, lines in grouped.items():
        for name in RUNS if runs == EVERY else runs.split(", "):
            found.setdefault(name, set()).update(lines)
    return found


def by_line(found):
    """Each line once: lines by the runs that have them."""
    grouped = {}
    for line in sorted(set().union(*found.values())):
        runs = [name for name in RUNS if line in found.get(name, ())]
        grouped.setdefault(EVERY if len(runs) == len(RUNS) else ", ".join(runs), []).append(line)
    return grouped


def read_forms():
    """The golden forms by what they are of and by run."""
    grouped = json.loads(FORMS.read_text()) if FORMS.is_file() else {}
    return {what: by_run(grouped.get(what, {})) for what in CURRENT}


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory, shared_cache):
    """Hospitals with labels of half their images, and one without; all have public images, and the server has, too.

    In ``many`` they have images of enough patients for the shipped policies.
    """
    folder = tmp_path_factory.mktemp("hospitals")
    for place, images, share in (("few", 60, 0.5), ("many", 200, 1.0)):
        labelled = {**dict.fromkeys(SITES, share), UNLABELLED: 0.0}
        draw_hospitals(folder / place, list(labelled), images, labelled)
    for site in labelled:
        give_public_images(folder / "few", site, 32)
    drawn = phantom_site("server", folder / "few", size=SIDE, images=32)
    drawn.write_text(json.dumps({"datasets": {"public": json.loads(drawn.read_text())["datasets"]["phantom"]}}))
    return folder


def of_few_patients(policy):
    """A policy with the lowest minimum, so that little of what leaves depends on how many are predicted correctly."""
    return re.sub(r'("minimum(_support)?": )\d+', r"\g<1>2", policy)


def found_forms(name, hospitals, workspace, monkeypatch):
    """The forms of all messages and checkpoints of a run."""
    job, _, policy = name.partition(" under ")
    sites = [*SITES, UNLABELLED] if job in ("fedirm", "rscfed") else SITES
    for site in sites if policy else ():
        local = workspace / "flare" / site / "local"
        local.mkdir(parents=True)
        (local / "privacy.json").write_text(of_few_patients(json.dumps(shipped_content(policy))))
        Ledger.create(local / "privacy", site)
    messages, checkpoints = set(), set()
    work = Site.work

    def observed(self, task, message, server):
        messages.update(f"{task} asks{line}" for line in form(message[DXO_KEY]))
        reply = work(self, task, message, server)
        messages.update(f"{task} answers{line}" for line in form(reply[DXO_KEY]))
        return reply

    monkeypatch.setattr(Site, "work", observed)
    with registered_small_networks():
        Federation(job, sites, hospitals / ("many" if policy else "few"), ["controller.min_sites=2"])(
            workspace, *RUNS[name]
        )
    (kept,) = (workspace / "state").iterdir()
    for path in kept.glob("*/**/*.pt"):
        party, *place = path.relative_to(kept).with_suffix("").parts
        where = "/".join(["server" if party == "server" else "site", *place])
        where = re.sub(r"site-\d", "SITE", re.sub(r"(?<=[_@-])\d{5}", "NUMBER", where))
        checkpoints.update(f"{where}{line}" for line in form(torch.load(path, weights_only=True)))
    return {"messages": messages, "checkpoints": checkpoints}


@pytest.mark.parametrize("name", RUNS)
def test_what_travels_and_what_is_kept_have_the_forms_of_their_versions(name, hospitals, tmp_path, monkeypatch):
    found, known = found_forms(name, hospitals, tmp_path, monkeypatch), read_forms()
    if os.environ.get("GRANDROUNDS_WRITE_GOLDEN"):
        for what, lines in found.items():
            known[what][name] = lines
        FORMS.write_text(json.dumps({what: by_line(runs) for what, runs in known.items()}, indent=1) + "\n")
    for what, lines in found.items():
        changed = sorted(lines ^ known[what][name])
        assert not changed, f"the {what} of {name} are not those of version {CURRENT[what]}: raise it"


@pytest.mark.parametrize("what", CURRENT)
def test_forms_change_only_with_a_new_line_in_the_table_of_versions(what):
    now, table = digest(json.loads(FORMS.read_text())[what]), json.loads(VERSIONS.read_text())
    if os.environ.get("GRANDROUNDS_WRITE_GOLDEN") and CURRENT[what] not in table[what]:
        table[what][CURRENT[what]] = now
        VERSIONS.write_text(json.dumps(table, indent=1) + "\n")
    assert table[what].get(CURRENT[what]) == now, f"the {what} are not those of version {CURRENT[what]}: raise it"
    assert len(set(table[what].values())) == len(table[what])


def test_every_job_is_run():
    assert {name.partition(" under ")[0] for name in RUNS} == {*job_names(), *OUTSIDE}
