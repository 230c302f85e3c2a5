"""Which method to start with: from the sites' labels, what may leave them and their networks to one command, with evidence.

The answers are an ordered list of rules, whose words are in ``advice.json``; the first that applies is given. A rule states
the committed result that speaks for it, or that nothing was measured.
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
from grandrounds.files import read_json_object
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


_APPLIES: Mapping[str, Callable[[Situation], bool]] = {
    "one_site": lambda found: len(found.labelled) == 1,
    "noisy": lambda found: found.leaves == "noisy",
    "own_networks_and_public_images": lambda found: found.networks == "own" and found.public,
    "own_networks": lambda found: found.networks == "own",
    "sites_without_labels": lambda found: found.leaves == "updates" and bool(found.without_labels),
    "more_unlabelled_images": lambda found: (
        found.leaves == "updates" and sum(found.unlabelled.values()) > sum(found.labelled.values())
    ),
    "updates": lambda found: found.leaves == "updates",
    "else": lambda found: True,
}
"""When the entry of ``advice.json`` beside this file applies."""
_ADVICE = read_json_object(Path(__file__).with_name("advice.json"))
RULES: Sequence[_Rule] = [
    _Rule(applies, Advice(**{**_ADVICE[name], "options": tuple(_ADVICE[name]["options"])}))
    for name, applies in _APPLIES.items()
]
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
