"""Which method to start with: from the sites' labels, what may leave them and their networks to one command, with evidence.

The answers are an ordered list of rules; the first that applies is given. A rule states the committed result that speaks for
it, or that nothing was measured.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from grandrounds.data.manifest import read_manifest
from grandrounds.data.partition.files import MANIFEST_FILE, read_partition, sites_and_problem
from grandrounds.deployment.presets import FIRST_JOB
from grandrounds.errors import ConfigurationError
from grandrounds.protocol.tasks import task_of

NOT_MEASURED = "not measured"
Networks = Literal["one", "own"]
Leaves = Literal["sums", "updates", "noisy"]


@dataclass(frozen=True)
class Situation:
    """What decides which method fits.

    Attributes:
        labelled: training images with a label, by site.
        unlabelled: the other training images, by site.
        classes: labelled training images of each class or finding over all sites; empty where that is not known.
        devices: the sources that the manifests name, over all sites.
        public: whether every site has the same public images.
        networks: whether all sites can train one network, or each must have its own.
        leaves: what may leave a site: exact ``sums`` of products of features, model ``updates``, or only ``noisy`` updates
            with a privacy budget.
    """

    labelled: Mapping[str, int]
    unlabelled: Mapping[str, int]
    classes: Mapping[str, int]
    devices: tuple[str, ...] = ()
    public: bool = False
    networks: Networks = "one"
    leaves: Leaves = "sums"

    @property
    def without_labels(self) -> list[str]:
        """Sites that have no label."""
        return [site for site, count in self.labelled.items() if not count]

    @property
    def lines(self) -> list[str]:
        """What was found, for people."""
        rarest = min(self.classes, key=lambda name: self.classes[name]) if self.classes else ""
        return [
            f"{len(self.labelled)} sites, {sum(self.labelled.values())} labelled training images, "
            f"{sum(self.unlabelled.values())} unlabelled; without any label: {', '.join(self.without_labels) or 'no site'}",
            *([f"{len(self.classes)} classes; rarest: {rarest} ({self.classes[rarest]} labelled)"] if rarest else []),
            *([f"{len(self.devices)} devices: {', '.join(self.devices)}"] if len(self.devices) > 1 else []),
        ]


@dataclass(frozen=True)
class Advice:
    """One method to start with.

    Attributes:
        job: its name.
        options: further arguments of ``grandrounds simulate``.
        reason: why.
        evidence: the committed result, with its page, or ``not measured``.
    """

    job: str
    options: tuple[str, ...]
    reason: str
    evidence: str

    def command(self, sites_dir: Path) -> str:
        """What to type; the job that runs where none is named, with the options that it has then, is left out."""
        named = [] if self.job == FIRST_JOB else [self.job]
        options = self.options if named else ()
        return shlex.join(["grandrounds", "simulate", *named, "--sites-dir", str(sites_dir), *options])


@dataclass(frozen=True)
class _Rule:
    applies: Callable[[Situation], bool]
    advice: Advice


_RECOMMENDED, _SCRATCH = ("--preset", "recommended"), ("--preset", "scratch")
_ALONE = (
    "benchmarks/defaults: balanced accuracy .390 alone, .526 together on HAM10000 with a quarter of the labels, .799 and "
    ".892 on blood cells (three divisions, at 112 pixels)"
)
_PRIVATE = (
    "--rounds", "40", "--image-size", "112", "--backbone", "efficientnet_lite0",
    "--set", "problem.weights=imagenet", "--set", "problem.trainable=head", "--set", "problem.dropout=0",
    "--set", "executor.record_noise_multiplier=2.07", "--set", "executor.record_clip=20",
    "--set", "executor.class_weights=none", "--set", "executor.batch_size=350", "--set", "executor.steps=5",
    "--set", "executor.algorithm=sgd", "--set", "executor.learning_rate=0.05",
    "--set", "executor.weak_augmentation=false", "--set", "executor.feature_cache=1",
)  # fmt: skip
RULES: Sequence[_Rule] = (
    _Rule(
        lambda found: len(found.labelled) == 1,
        Advice("local", _RECOMMENDED, "there is one site, so there is nothing to federate", _ALONE),
    ),
    _Rule(
        lambda found: found.leaves == "noisy",
        Advice(
            "fedavg",
            _PRIVATE,
            "under a privacy budget the head of a frozen network loses least; epsilon follows from the number of images of "
            "the smallest site (docs/how-to/private-training.md), and batch_size must be below that number",
            "benchmarks/private_finetuning: AUC .867 at epsilon 8 beside .883 without noise (HAM10000, five seeds)",
        ),
    ),
    _Rule(
        lambda found: found.networks == "own" and found.public,
        Advice(
            "mdhfl",
            _RECOMMENDED,
            "sites with networks of their own learn from each other's predictions on the public images; where partners may "
            "run each other's models, compare with grandrounds evaluate --ensemble after local",
            "benchmarks/mdhfl_networks: accuracy .067 above local training [.044, .091] with a fifth of labels wrong at "
            "random, .030 [-.013, .073] with pairs of classes confused (five seeds, without the preset)",
        ),
    ),
    _Rule(
        lambda found: found.networks == "own",
        Advice(
            "local",
            _RECOMMENDED,
            "sites with networks of their own need public images to learn from each other, and there are none here: divide "
            "the images with --scheme mdhfl, or agree on one network and leave out --networks own",
            _ALONE,
        ),
    ),
    _Rule(
        lambda found: found.leaves == "updates" and bool(found.without_labels),
        Advice(
            "fedirm",
            _SCRATCH,
            "sites without labels take part only with a method for them; compare with fedavg at the sites with labels",
            "benchmarks/ssl_pbc: macro F1 .011 above FedAvg of the labelled sites [-.000, .023] at equal statistics (five "
            "seeds); benchmarks/ssl_ham10000: -.014 [-.033, .006] (three seeds)",
        ),
    ),
    _Rule(
        lambda found: found.leaves == "updates" and sum(found.unlabelled.values()) > sum(found.labelled.values()),
        Advice(
            "ssfl",
            _SCRATCH,
            "there are more unlabelled images than labelled ones, and pseudo-labels use them; compare with fedavg, and "
            "label more images where you can",
            "benchmarks/ssl_pbc: macro F1 .021 above FedAvg [.007, .036] (not significant after correction, eight seeds); "
            "benchmarks/ssl_ham10000: .007 [-.005, .019]",
        ),
    ),
    _Rule(
        lambda found: found.leaves == "updates",
        Advice(
            "fedavg",
            _SCRATCH,
            "sites have labels and can train one network; sums of features may not leave them",
            "benchmarks/defaults, at 112 pixels: balanced accuracy .798 and AUC .978 on blood cells with a quarter of the "
            "labels, where ridge has .892 and .992 (three divisions); .360 and .786 on HAM10000, ridge .557 and .902 (one)",
        ),
    ),
    _Rule(
        lambda found: True,
        Advice(
            "ridge",
            _RECOMMENDED,
            "ridge, which runs where no method is named: all sites can use one frozen network and exact sums may leave, so "
            "three messages a site give the head of all "
            "labelled images together, in minutes; other methods have it as a row to beat",
            "benchmarks/defaults: balanced accuracy .541 and AUC .899 on HAM10000 with a quarter of the labels (five "
            "divisions); at 112 pixels FedAvg from a new head has .360 and .786 where ridge has .557 and .902 (one of them)",
        ),
    ),
)
"""In this order; the last always applies."""


def situation(sites_dir: Path, networks: Networks = "one", leaves: Leaves = "sums") -> Situation:
    """Read what the manifests of a partition say.

    Raises:
        ConfigurationError: if the folder is no partition.
        DataError: if it is damaged.
    """
    names, _ = sites_and_problem(sites_dir)
    described: Mapping[str, Any] = read_partition(sites_dir)
    sites = described["sites"]
    labelled = {site: int(sites[site]["labelled"]) for site in names}
    train = {site: int(sites[site]["images"]["train"]) for site in names}
    records = [one for site in names for one in read_manifest(sites_dir / site / MANIFEST_FILE)]
    used = [record for record in records if record.split == "train" and record.labelled and record.label]
    held = [name for one in used for name in task_of(described).names_in(one.label)]
    classes = {name: held.count(name) for name in described["classes"]}
    return Situation(
        labelled,
        {site: train[site] - labelled[site] for site in names},
        classes,
        tuple(sorted({record.source for record in records if record.source})),
        "public_set" in described,
        networks,
        leaves,
    )


def advise(found: Situation) -> Advice:
    """The method to start with.

    Raises:
        ConfigurationError: if no site has a label.
    """
    if not any(found.labelled.values()):
        raise ConfigurationError("no site has a labelled training image; label some images first, of every class")
    return next(rule.advice for rule in RULES if rule.applies(found))
