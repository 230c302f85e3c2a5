"""Bytes of a round with ``controller.aggregation=encrypted``, and the time of encryption.

Four sites of phantoms and the job ``fedavg`` with the network ``compact``, all of it or its head. Half a minute of CPU time.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import benchmarks.wire.run as wire
from benchmarks.measure import run, table
from benchmarks.parties import site_names
from grandrounds.deployment.assignments import with_options
from grandrounds.deployment.jobs import load_job
from grandrounds.deployment.simulate import simulate
from grandrounds.federation.encrypted_model import decrypt_mean, encrypt_model, encryption_of, sum_of_models
from grandrounds.federation.server.record import read_events
from grandrounds.models.registry import build_model
from grandrounds.privacy.mechanisms.ciphertexts import Keys, make_keys
from grandrounds.privacy.mechanisms.encrypted_sums import SERVER_KEY, SITE_KEY, EncryptedSum
from grandrounds.protocol.names import SERVER
from grandrounds.protocol.problem import ModelSpec

PARTS = ("all", "head")
OPTIONS = (
    *wire.COMMON,
    *wire.STEPS,
    "controller.rounds=2",
    "controller.aggregation=encrypted",
    "executor.encryption=required",
    "controller.norm_multiple=null",
    "controller.weight_multiple=null",
    "controller.min_sites=3",
)


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Bytes and seconds for each part of the network."""
    keys, parts = make_keys(), PARTS[-1:] if options.quick else PARTS
    return {"cases": [{"trained": part, **bytes_of(part, keys), **times(part, keys)} for part in parts]}


def bytes_of(trainable: str, keys: Keys) -> dict[str, float]:
    """KiB of a site in the second of two rounds, by the run's own record."""
    with tempfile.TemporaryDirectory() as folder:
        for party in (*site_names(wire.SITES), SERVER):
            local = Path(folder) / "flare" / party / "local"
            local.mkdir(parents=True)
            name, content = (SERVER_KEY, keys.public) if party == SERVER else (SITE_KEY, keys.secret)
            (local / name).write_bytes(content)
        job = with_options(load_job("fedavg"), [*OPTIONS, f"problem.trainable={trainable}", "problem.backbone=compact"])
        simulate(job, Path(folder), site_names(wire.SITES))
        ends = [event["moved"] for event in read_events(Path(folder) / "results") if event["event"] == "round_end"]
    return {f"{way}_kib": (ends[1][way] - ends[0][way]) / wire.SITES / 1024 for way in ("down", "up")}


def times(trainable: str, keys: Keys) -> dict[str, float]:
    """Seconds to encrypt a model, to add two, and to decrypt their mean."""
    model = build_model(ModelSpec("compact", 4, trainable=trainable), seed=1).state_dict()
    numbers = sum(value.numel() for value in model.values() if value.is_floating_point())
    total, use = EncryptedSum(keys.public, "model"), sum_of_models("run", 1)
    others = {site: encrypt_model(model, 1.0, site, keys.secret, use) for site in ("site-2", "site-3")}
    total.add("site-2", others["site-2"])
    clock = [time.process_time()]
    given = encrypt_model(model, 1.0, "site-1", keys.secret, use)
    clock.append(time.process_time())
    total.add("site-1", given)
    clock.append(time.process_time())
    total.add("site-3", others["site-3"])
    added = total.close()
    assert added is not None
    started = time.process_time()
    decrypt_mean(added, keys.secret, encryption_of(model, "uniform")["shapes"], use)
    clock.append(clock[-1] + time.process_time() - started)
    steps = zip(("encrypt_s", "add_s", "decrypt_s"), clock, clock[1:], strict=False)
    return {"numbers": numbers, "plain_kib": numbers * 4 / 1024, **{name: end - start for name, start, end in steps}}


def tables(result: dict[str, Any]) -> str:
    """A row for each part of the network."""
    columns = {
        "trained layers": "trained",
        "numbers": "numbers",
        "KiB plain": "plain_kib",
        "KiB down": "down_kib",
        "KiB up": "up_kib",
        "s to encrypt": "encrypt_s",
        "s to add two": "add_s",
        "s to decrypt": "decrypt_s",
    }
    return table(columns, result["cases"], 2)


if __name__ == "__main__":
    run(__file__, measured, tables)
