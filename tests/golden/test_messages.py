"""Whole sentences of errors that people meet, as one file that an editor can read: ``tests/golden/messages.json``.

Elsewhere tests match the name of the option, the file or the site. After a change of words run
``GRANDROUNDS_WRITE_GOLDEN=1 pytest tests/golden`` and read the difference.
"""

import json
import os
from pathlib import Path

import pytest

import grandrounds as gr
from grandrounds.checks import require_at_least, require_fraction
from grandrounds.data.families import DATASETS, OWN_SOURCES
from grandrounds.data.manifest import read_manifest
from grandrounds.data.partition.schemes import make_partition
from grandrounds.deployment.jobs import load_job
from grandrounds.deployment.presets import with_options, with_preset
from grandrounds.errors import GrandRoundsError
from grandrounds.models.registry import build_model
from grandrounds.protocol.problem import ModelSpec

MESSAGES = Path(__file__).with_name("messages.json")
SET = {
    "fedavg": [
        *("controller.rounds=0", "controller.rounds=two", "controller.seed=null", "controller.weighting=fair"),
        *("controller.aggregation=sum", "controller.max_norm=-1"),
        *("controller.selection_metric=auc", "controller.round=3", "peers=3", "controller.min_sites=0"),
        *("executor.learning_rate=0", "executor.steps=2.5", "executor.algorithm=lbfgs"),
        *("executor.record_noise_multiplier=1", "executor.class_weights=pooled", "executor.test_last=true"),
        *("problem.norm=site", "problem.backbone=resnett10", "problem.image_size=16", "problem.classes=[]"),
        *("problem.head=wide", "problem.trainable=some", "problem.dropout=1.5"),
    ],
    "fedperl": [
        "controller.peers=1",
        "controller.gate=0.5",
        "controller.policy=gated_similarity",
        "executor.threshold=2",
    ],
    "mdhfl": ["controller.rounds=1", "executor.optimizer=kept", "executor.model=shared"],
    "fedirm": ["executor.betas=[0.9]", "executor.draws=0", "controller.unlabelled_start=-1"],
    "fed_align_cl": ["executor.model=own", "executor.update=none", "executor.embedding_clip=0"],
    "statistics": ["controller.rounds=2"],
}


def checked(name, *assignments, preset=None):
    with_options(with_preset(load_job(name), preset), list(assignments)).checked()


def manifest(folder, text):
    (folder / "manifest.csv").write_text(text)
    return read_manifest(folder / "manifest.csv", ["nevus", "melanoma"])


CASES = {
    **{
        f"{job} {assignment}": lambda _, job=job, assignment=assignment: checked(job, assignment)
        for job, assignments in SET.items()
        for assignment in assignments
    },
    "an unknown job": lambda _: load_job("fedprl"),
    "an unknown preset": lambda _: with_preset(load_job("fedperl"), "papers"),
    "a job without presets": lambda _: with_preset(load_job("statistics"), "paper"),
    "an unknown network": lambda _: build_model(ModelSpec("densenet", classes=2), seed=1),
    "a fraction": lambda _: require_fraction(1.5, "share"),
    "too small": lambda _: require_at_least(1, 2, "sites"),
    "a row without an image": lambda folder: manifest(folder, "image,label,split,patient\n,nevus,train,p\n"),
    "an unknown class": lambda folder: manifest(folder, "image,label,split,patient\na.png,nevvus,train,p\n"),
    "an unknown split": lambda folder: manifest(folder, "image,label,split,patient\na.png,nevus,dev,p\n"),
    "a missing column": lambda folder: manifest(folder, "image,class,split,patient\na.png,nevus,train,p\n"),
    "an image twice": lambda folder: manifest(
        folder, "image,label,split,patient\na.png,nevus,train,p\na.png,nevus,train,p\n"
    ),
    "no table": lambda folder: read_manifest(folder / "manifest.csv", ["nevus"]),
    "no run": lambda folder: gr.Run(folder),
    "no partition": lambda folder: gr.Sites.read(folder),
    "no site": lambda _: gr.Sites.synthetic(0),
    "another engine's option": lambda _: gr.run("fedavg", 2, execution=gr.Execution(threads=2)),
    "an unknown data set": lambda folder: make_partition("ham", folder, folder / "out"),
    **{
        f"no {name}": lambda folder, name=name: make_partition(name, folder, folder / "out")
        for name in sorted({**DATASETS, **OWN_SOURCES})
    },
}


def message(case, folder):
    with pytest.raises((GrandRoundsError, ValueError)) as caught:
        CASES[case](folder)
    return f"{type(caught.value).__name__}: {caught.value}".replace(str(folder), "FOLDER").replace(
        folder.name, "FOLDER"
    )


@pytest.mark.parametrize("case", CASES)
def test_a_message_is_the_one_that_was_read(case, tmp_path):
    found = message(case, tmp_path)
    known = json.loads(MESSAGES.read_text()) if MESSAGES.is_file() else {}
    if os.environ.get("GRANDROUNDS_WRITE_GOLDEN"):
        kept = {name: text for name, text in known.items() if name in CASES} | {case: found}
        MESSAGES.write_text(json.dumps(dict(sorted(kept.items())), indent=2, ensure_ascii=False) + "\n")
    else:
        assert found == known[case]


def test_no_message_is_of_a_case_that_is_gone():
    assert json.loads(MESSAGES.read_text()).keys() == CASES.keys()
