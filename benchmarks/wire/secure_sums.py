"""Measure what a secure sum costs a site: bytes and CPU seconds of an update of 4 M parameters, and of ridge's sums.

Ten sites with keys and certificates of startup kits and ledgers on disk join, share, mask, sign and open one sum by the
functions that gates use; messages are JSON and tensors as they travel. CPU seconds of a site are those of its own process
time, from a release to the last answer. Tasks to the sites count apart. Nobody waits here: in kits the two small tasks after
the masked numbers add up to one polling interval of trainings and one of sums to a round.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.federation import new_federation
from benchmarks.measure import MEBIBYTE, run, table
from grandrounds.models.closed_form.received import packed_shapes
from grandrounds.privacy.gate.sums import LedgerNotes
from grandrounds.privacy.ledger.ledger import Ledger
from grandrounds.privacy.secure_sums.attempt import Rules
from grandrounds.privacy.secure_sums.messages import Phase, SumAnswer, SumTask
from grandrounds.privacy.secure_sums.opening import open_sum, opened_numbers, tensors_to_words
from grandrounds.privacy.secure_sums.party import KitIdentity, SumParty
from grandrounds.privacy.secure_sums.roster import Roster, key_digest
from grandrounds.privacy.secure_sums.summands import SumTerms, summed_words, words_to_tensors
from grandrounds.protocol.messages import ReleaseKind, State

SITES = tuple(f"hospital-{number}" for number in range(10))
JOB = "0" * 64
PARAMETERS, FEATURES, CLASSES = 4_000_000, 2_256, 7
SAMPLES = 500


def update(generator: torch.Generator) -> State:
    """An update in single precision, in tensors of 100,000 values."""
    count = PARAMETERS // 40
    return {f"layer{number}.weight": torch.randn(count, generator=generator) * 1e-3 for number in range(40)}


def features(generator: torch.Generator) -> State:
    """Ridge's sums: products of features and of features with targets, in double precision."""
    shapes = packed_shapes(FEATURES, CLASSES)
    return {name: torch.randn(*shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}


CASES: Mapping[str, tuple[ReleaseKind, Callable[[torch.Generator], State], dict[str, Any]]] = {
    "update": (ReleaseKind.MODEL_UPDATE, update, {}),
    "sums": (ReleaseKind.SUFFICIENT_STATISTICS, features, {"weight": 10.0 * SAMPLES, "largest_norm": 256.0}),
}


def measured(options: argparse.Namespace) -> dict[str, Any]:
    sites = SITES[:3] if options.quick else SITES
    federation = new_federation(options.workspace, sites)
    parties = {}
    pins = {}
    for site in sites:
        startup = federation.kits / site / "startup"
        files = [(startup / name).read_bytes() for name in ("client.crt", "client.key", "rootCA.pem")]
        own = KitIdentity.read(*files, None)
        pins[site] = key_digest(_certificate(own))
        parties[site] = (files, Ledger.create(options.workspace / "ledgers" / site, site))
    made = {
        site: SumParty(site, "run", JOB, KitIdentity.read(*files, pins), Rules(), LedgerNotes(ledger))
        for site, (files, ledger) in parties.items()
    }
    return {"sites": len(sites), "cases": [one_sum(name, made) for name in CASES]}


def _certificate(identity: KitIdentity) -> Any:
    from cryptography import x509

    return x509.load_pem_x509_certificate(identity.certificate)


class Meter:
    """Adds up what each site spends and sends."""

    def __init__(self, sites: Mapping[str, SumParty]) -> None:
        self.seconds = dict.fromkeys(sites, 0.0)
        self.up, self.down = dict.fromkeys(sites, 0), dict.fromkeys(sites, 0)

    def of(self, site: str, task: SumTask, work: Callable[[SumTask], State]) -> State:
        """A site's answer to a task as it travels."""
        sent = json.dumps(task.to_json())
        self.down[site] += len(sent)
        began = time.process_time()
        answer = work(SumTask.from_json(json.loads(sent)))
        self.seconds[site] += time.process_time() - began
        self.up[site] += sum(value.nbytes for value in answer.values())
        return answer


def one_sum(name: str, parties: Mapping[str, SumParty]) -> dict[str, Any]:
    kind, draw, values = CASES[name]
    terms = SumTerms(len(parties), False, {"most_samples": SAMPLES}, values)
    releases = {site: draw(torch.Generator().manual_seed(at)) for at, site in enumerate(parties)}
    meter = Meter(parties)

    def asked(phase: Phase, **more: Any) -> dict[str, SumAnswer]:
        tasks = {site: SumTask(phase, **{key: value(site) for key, value in more.items()}) for site in parties}
        return {
            site: SumAnswer.from_tensors(
                meter.of(site, task, lambda task, s=site: parties[s].answer(task).to_tensors())
            )
            for site, task in tasks.items()
        }

    joined = asked(Phase.JOIN)
    roster = Roster(name, {s: a.join for s, a in joined.items()}, {s: a.nonce for s, a in joined.items()})
    sealed = asked(Phase.SHARES, roster=lambda _: roster)
    boxes = {site: {other: sealed[other].boxes[site] for other in parties if other != site} for site in parties}
    inputs = {}
    for site, party in parties.items():

        def masked(task: SumTask, party: SumParty = party, site: str = site) -> State:
            words, _ = summed_words({name: (kind, releases[site])}, SAMPLES, terms)
            return words_to_tensors(party.masked(task, words, b"", "" if kind is ReleaseKind.MODEL_UPDATE else "skin"))

        inputs[site] = tensors_to_words(meter.of(site, SumTask(Phase.INPUT, roster, boxes=boxes[site]), masked))
    chosen = tuple(sorted(parties))
    about = {"roster": lambda _: roster, "boxes": boxes.get, "contributors": lambda _: chosen}
    signed = {site: answer.signature for site, answer in asked(Phase.CONTRIBUTORS, **about).items()}
    opening = {
        site: answer.unmasking for site, answer in asked(Phase.UNMASK, **about, signatures=lambda _: signed).items()
    }
    began = time.process_time()
    words = open_sum(roster, Rules().needed(len(parties)), inputs, opening)
    sums, _ = opened_numbers(words, {name: kind}, len(parties), terms)
    server = time.process_time() - began
    exact = {key: sum(releases[site][key].double() for site in parties) for key in releases[chosen[0]]}
    errors = [float((sums[name][key].reshape(value.shape) - value).abs().max()) for key, value in exact.items()]
    plain = sum(value.nbytes for value in releases[chosen[0]].values())
    return {
        "sum": name,
        "numbers": sum(value.numel() for value in releases[chosen[0]].values()),
        "plain_mb": round(plain / 1e6, 3),
        "up_mb": round(max(meter.up.values()) / 1e6, 3),
        "relative": round(max(meter.up.values()) / plain, 4),
        "tasks_kib": round(max(meter.down.values()) / MEBIBYTE * 1024, 1),
        "site_cpu_seconds": round(sum(meter.seconds.values()) / len(parties), 3),
        "server_cpu_seconds": round(server, 2),
        "largest_error": max(errors),
    }


def tables(result: dict[str, Any]) -> str:
    columns = {"sum": "sum", "numbers": "numbers", "MB plain": "plain_mb", "MB up": "up_mb", "of plain": "relative"}
    columns |= {
        "KiB of tasks": "tasks_kib",
        "CPU s a site": "site_cpu_seconds",
        "CPU s at the server": "server_cpu_seconds",
    }
    return table(columns, result["cases"], 3)


if __name__ == "__main__":
    run(
        __file__,
        measured,
        tables,
        timed=False,
        workspace={"type": Path, "default": Path("runs/secure_sums"), "help": "is emptied first"},
    )
