"""Mutual learning on the server, which adds up the soft labels of all sites and knows no model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, ClassVar

import torch
from torch import Tensor

from grandrounds.data.site import PUBLIC_NAME as PUBLIC
from grandrounds.errors import ConfigurationError, MessageError
from grandrounds.federation.server.controller import RoundController
from grandrounds.federation.server.robust import SECURE
from grandrounds.methods.mutual.exchange import SoftLabelExchange
from grandrounds.methods.mutual.executor import CHANGE, LOSS, SOFT_LABELS, VALUES
from grandrounds.methods.mutual.options import ContributorOptions, ExchangeOptions
from grandrounds.methods.mutual.schedule import Exchanges
from grandrounds.methods.mutual.soft_labels import SoftLabels, encode
from grandrounds.ordering import natural_sorted
from grandrounds.protocol.messages import Payload, Registration, ReleaseKind, Result, State

MAX_PUBLIC_IMAGES = 10**7
PUBLIC_IMAGES = "public_images"
"""The number in a registration."""


class MutualController(RoundController):
    """Exchange of soft labels on a public set that all sites have (MDH-FL, arXiv 2308.00155; RHFL; FedMD).

    A run of E collaborative epochs takes E + 1 rounds; with ``chunk``, K E + 1 (see
    :class:`~grandrounds.methods.mutual.schedule.Exchanges`). The last round publishes nothing, so a run that is continued
    with more ``rounds`` learns nothing from the others in the first of them.
    """

    registrations: ClassVar[bool] = True
    contributors: ContributorOptions
    exchange: ExchangeOptions

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        sampled, minimum = self.run.sites_per_round, self.contributors.min_contributors
        if sampled is not None and sampled < minimum and not self.exchange.max_age:
            raise ConfigurationError(
                f"sites_per_round is {sampled}, below min_contributors = {minimum}: no sum would ever be sent"
            )
        if self.rounds < 2:
            raise ConfigurationError(f"rounds must be at least 2: the first only publishes, got {self.rounds}")
        if self.problem.weights is not None and not self.problem.has_frozen:
            raise ConfigurationError(
                "problem.weights must be null unless problem.trainable freezes layers: every site has a network of its own"
            )
        self._digest: str | None = None
        self._images = 0  # of the public set; 0 until it is known
        self._exchanges: Exchanges | None = None
        self._soft_labels: SoftLabelExchange | None = None
        self._sum: SoftLabels | None = None
        if self.contributors.aggregation == SECURE:
            self._require_summable()

    def is_secure(self) -> bool:
        """Whether the server learns sums of soft labels and nothing of a single site."""
        return self.sums.covers(self.contributors.aggregation, ReleaseKind.SOFT_LABELS)

    def sites_ready(self, sites: list[str]) -> None:
        """Have the sites say what leaves them masked, where sums may be secure.

        Raises:
            ConfigurationError: if they are, and an option needs single soft labels.
        """
        if self.sums.settle(self.contributors.aggregation, ReleaseKind.SOFT_LABELS, sites):
            self._require_summable()

    def _require_summable(self) -> None:
        """Refuse options that need the soft labels of single sites, or their bits.

        Raises:
            ConfigurationError: naming them.
        """
        needed = {"weighting": "uniform", "max_age": 0, "wire": "fp32"}
        wrong = [
            f"controller.{name}={value}" for name, value in needed.items() if getattr(self.exchange, name) != value
        ]
        if wrong:
            raise ConfigurationError(
                f"secure sums show no site's soft labels: set {', '.join(wrong)}, or have the sites take the policy "
                "open, and set controller.aggregation=mean"
            )

    def open_round(self, sites: list[str]) -> None:
        """Expect soft labels from each of these sites."""
        if self.is_secure() and self._publishing:
            self.sums.open(f"{SOFT_LABELS} {self.round_number}", sites, kinds={SOFT_LABELS: ReleaseKind.SOFT_LABELS})

    def registration_for(self, site: str) -> Payload:
        """The name of the public set."""
        return self.payload({}, public=self.contributors.public)

    def check_registration(self, site: str, registration: Registration) -> None:
        """Refuse a site with other classes, or without the public set.

        Raises:
            MessageError: saying what differs.
        """
        classes, expected = registration.scalars.get("classes"), len(self.problem.classes)
        if classes != expected:
            raise MessageError(f"{site} has a head of {classes} classes, the job has {expected}")
        images = registration.scalars.get(PUBLIC_IMAGES, 0)
        if not images >= 1 or PUBLIC not in registration.facts:
            raise MessageError(f"{site} has not reported which public images it has")
        if images > MAX_PUBLIC_IMAGES or images != int(images):
            raise MessageError(
                f"{site} reports {images:g} public images, expected a whole number of at most {MAX_PUBLIC_IMAGES}"
            )
        if self._digest is not None:
            self._require_public_set(site, registration)

    def joining_needs(self) -> str:
        """The public set."""
        name = self.contributors.public
        return f"each site needs images under the name {name!r} in its grandrounds.json, the same at all sites"

    def participants(self, available: list[str]) -> list[str]:
        """The sites with the public set; in the first round the public set, and its number of images, is that of most sites.

        Raises:
            GrandRoundsError: if too few have the public set.
        """
        if self._digest is None:
            digests = Counter(self.registered[site].facts[PUBLIC] for site in available)
            self._digest = digests.most_common(1)[0][0] if digests else None
        if not self._images:
            numbers = Counter(self._number(site) for site in available if self._has_set(self.registered[site]))
            self._images = min(numbers, key=lambda number: (-numbers[number], number), default=0)
        refused = len(self.sites.refused)
        for site in available:
            try:
                self._require_public_set(site, self.registered[site])
            except MessageError as error:
                self.sites.refused[site] = str(error)
                # Another start of the run asks it again: its images may have been fixed.
                del self.registered[site]
        having = [site for site in available if site not in self.sites.refused]
        if len(self.sites.refused) > refused:
            self.dispatcher.require_enough(having)
        if self._soft_labels is None and having:
            self._open(self._images)
        return having

    def payload_for(self, site: str) -> Payload:
        """The sum of the last exchange, the same for all sites."""
        contributors: dict[str, Any] = {"rounds": {}, "weights": {}}
        parts: dict[str, State] = {}
        if self._sum and self._enough(self._sum):
            contributors = {"rounds": dict(self._sum.rounds), "weights": dict(self._sum.weights)}
            # The mean of all contributors: as large as the soft labels of one site.
            parts[SOFT_LABELS] = {VALUES: encode(self._sum.mean(), self.exchange.wire)}
        exchange = {"options": asdict(self.exchange), "rounds": self.rounds, "contributors": contributors}
        return self.payload(parts, public=self.contributors.public, exchange=exchange)

    def check(self, site: str, result: Result) -> None:
        """Refuse wrong soft labels.

        Raises:
            MessageError: naming what is wrong.
        """
        if self.is_secure():
            return  # nothing of a single site is here
        if not self._publishing:
            if SOFT_LABELS in result.releases:
                raise MessageError(f"{site} has sent soft labels in a round without an exchange")
            return
        release = result.releases.get(SOFT_LABELS)
        if release is None or release.kind is not ReleaseKind.SOFT_LABELS or set(release.tensors) != {VALUES}:
            raise MessageError(f"{site} must send its soft labels")
        self._known_soft_labels.check(site, *self._published(result))

    def absorb(self, site: str, result: Result) -> None:
        """Keep the soft labels."""
        if self._publishing and not self.is_secure():
            self._known_soft_labels.accept(site, *self._published(result))

    def close_round(self) -> None:
        """Add up the soft labels."""
        if not self._publishing:
            self._sum = None
        elif self.is_secure():
            self._sum = self._opened()
        else:
            self._sum = self._known_soft_labels.total(self.round_number)

    def _opened(self) -> SoftLabels | None:
        """The secure sum of this exchange; None if it is lost."""
        opened = self.sums.close()
        if opened is None:
            return None
        rounds = dict.fromkeys(opened.contributors, self.round_number)
        return SoftLabels(opened.releases[SOFT_LABELS][VALUES].float(), rounds, dict.fromkeys(rounds, 1.0))

    def model(self) -> None:
        """There is none: each site scores and tests its own."""

    def round_notes(self) -> dict[str, Any]:
        """The contributors of the sum, each with its round and weight; ``withheld`` where they are too few to send it."""
        if self._sum is None:
            return {}
        notes: dict[str, Any] = {"contributors": dict(self._sum.rounds)}
        if not self._enough(self._sum):
            notes["withheld"] = True
        if self.exchange.weighting != "uniform":
            notes["weights"] = {site: round(weight, 6) for site, weight in self._sum.weights.items()}
        if self.exchange.content == "probabilities":
            entropy = torch.special.entr(self._sum.mean().double()).sum(dim=1).mean()  # in nats
            notes["soft_label_entropy"] = round(float(entropy), 5)
        return notes

    def state_dict(self) -> dict[str, Any]:
        """The public set's digest and size, and the latest soft labels of all sites."""
        latest = self._soft_labels.state_dict() if self._soft_labels else None
        of_sum = asdict(self._sum) if self._sum and self.is_secure() else None
        return {"digest": self._digest, "images": self._images, "soft_labels": latest, "sum": of_sum}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what survived."""
        self._digest, self._images = state["digest"], state["images"] or self._images
        if state["soft_labels"]:
            self._open(self._images)
            self._known_soft_labels.load_state_dict(state["soft_labels"])
            self._sum = self._known_soft_labels.total(self.round_number)
        if state.get("sum"):
            self._sum = SoftLabels(**state["sum"])

    def _open(self, images: int) -> None:
        """Prepare the exchanges, now that the public set is known."""
        self._exchanges = Exchanges(images, self.seed, self.exchange)
        self._exchanges.epochs(self.rounds)
        per_epoch = self._exchanges.per_epoch
        self._soft_labels = SoftLabelExchange(len(self.problem.classes), self.exchange, per_epoch)

    @property
    def _known_soft_labels(self) -> SoftLabelExchange:
        if self._soft_labels is None:
            raise RuntimeError("no site has reported which public images it has")
        return self._soft_labels

    @property
    def _publishing(self) -> bool:
        return self.exchange.content != "none" and self.round_number < self.rounds

    def _enough(self, total: SoftLabels) -> bool:
        """Whether a sum hides its contributors from each other: a weight of zero adds nothing that could hide another's."""
        return sum(weight > 0 for weight in total.weights.values()) >= self.contributors.min_contributors

    def _published(self, result: Result) -> tuple[Tensor, int, int, float | None, float]:
        """Soft labels, exchange, number of images, loss and change, as the exchange takes them."""
        images = len(self._exchanges.part(self.round_number)) if self._exchanges else 0
        loss, change = result.metrics.get(LOSS), result.metrics.get(CHANGE, 0.0)
        return result.releases[SOFT_LABELS].tensors[VALUES], self.round_number, images, loss, change

    def _has_set(self, registration: Registration) -> bool:
        return registration.facts[PUBLIC] == self._digest

    def _number(self, site: str) -> int:
        return int(self.registered[site].scalars[PUBLIC_IMAGES])

    def _require_public_set(self, site: str, registration: Registration) -> None:
        digest = registration.facts[PUBLIC]
        if not self._has_set(registration):
            having = natural_sorted(s for s, other in self.registered.items() if other.facts[PUBLIC] == self._digest)
            raise MessageError(
                f"{site} has another public set ({digest[:12]}) than {', '.join(having) or 'the server'} "
                f"({str(self._digest)[:12]}); copy the images again"
            )
        images = registration.scalars[PUBLIC_IMAGES]
        if self._images and images != self._images:
            raise MessageError(f"{site} reports {images:g} public images, but the public set has {self._images}")
