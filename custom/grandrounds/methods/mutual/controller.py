"""Mutual learning on the server: it adds up what all models say of the public images, and knows no model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

import torch

from grandrounds.data.partition.files import PUBLIC_NAME as PUBLIC
from grandrounds.data.partition.public_set import fingerprints, read_public_set
from grandrounds.errors import CheckpointError, ConfigurationError, MessageError
from grandrounds.federation.server.controller import RoundController
from grandrounds.methods.mutual.contributions import RowSum, mean_of_all
from grandrounds.methods.mutual.exchange import RowExchange, RowMessage
from grandrounds.methods.mutual.executor import CHANGE, FINGERPRINTS, LOSS, ROWS
from grandrounds.methods.mutual.options import ExchangeOptions
from grandrounds.methods.mutual.public import comparable
from grandrounds.methods.mutual.schedule import Exchanges
from grandrounds.methods.mutual.soft_labels import encode_sum
from grandrounds.options import take_options
from grandrounds.ordering import natural_sorted
from grandrounds.protocol.messages import Payload, ReleaseKind, Result, State
from grandrounds.protocol.registration import Registration


class MutualController(RoundController):
    """Exchange of soft labels on a public set that all sites have (MDH-FL, arXiv 2308.00155; RHFL; FedMD).

    A run of E collaborative epochs takes E + 1 rounds; with ``chunk``, K E + 1 (see
    :class:`~grandrounds.methods.mutual.schedule.Exchanges`). The last round publishes nothing, so a run that goes on
    with more ``rounds`` learns nothing from the others in the first of them.

    Args:
        public: the name under which sites know the public set.
        public_list: file on the server with the list of the public set, so that a site with another set is told which image
            differs; None goes by what most sites have.
        min_contributors: fewest sites that count in a sum that is sent out; with two, each learns the other's rows. A site
            whose weight is zero does not count.
        options: those of :class:`~grandrounds.methods.mutual.options.ExchangeOptions` and of
            :class:`~grandrounds.federation.server.controller.RoundController`.
    """

    registrations: ClassVar[bool] = True
    row_kind: ClassVar[ReleaseKind] = ReleaseKind.SOFT_LABELS
    option_groups: ClassVar[tuple[type, ...]] = (ExchangeOptions,)

    def __init__(
        self, *, public: str = PUBLIC, public_list: str | None = None, min_contributors: int = 2, **options: Any
    ) -> None:
        self.exchange, others = take_options(ExchangeOptions, options)
        super().__init__(**others)
        if min_contributors < 2:
            raise ConfigurationError(f"min_contributors must be at least 2, got {min_contributors}")
        sampled = self.run.sites_per_round
        if sampled is not None and sampled < min_contributors and not self.exchange.max_age:
            raise ConfigurationError(
                f"sites_per_round is {sampled}, below min_contributors = {min_contributors}: no sum would ever be sent"
            )
        if self.rounds < 2:
            raise ConfigurationError(f"rounds must be at least 2: the first only publishes, got {self.rounds}")
        if self.problem.weights is not None:
            raise ConfigurationError("problem.weights must be null: every site has a network of its own")
        self.public = public
        self.public_list = public_list
        self.min_contributors = min_contributors
        self._digest: str | None = None
        self._reference: dict[str, State] = {}
        self._exchanges: Exchanges | None = None
        self._rows: RowExchange | None = None
        self._sum: RowSum | None = None

    def start(self) -> None:
        """Read the list of the public set, if there is one."""
        if self.public_list is not None:
            listed = comparable(read_public_set(Path(self.public_list)), self.public_list)
            self._digest = listed.digest
            self._reference = {PUBLIC: {FINGERPRINTS: torch.from_numpy(fingerprints(listed))}}

    def registration_for(self, site: str) -> Payload:
        """The name of the public set, and its fingerprints if the server has its list."""
        return self.payload(self._reference, public=self.public)

    def check_registration(self, site: str, registration: Registration) -> None:
        """Refuse a site with other classes, or without the public set.

        Raises:
            MessageError: saying what differs.
        """
        classes, expected = registration.scalars.get("classes"), len(self.problem.classes)
        if classes != expected:
            raise MessageError(f"{site} has a head of {classes} classes, the job has {expected}")
        if not registration.scalars.get("public_images", 0) >= 1 or PUBLIC not in registration.facts:
            raise MessageError(f"{site} has not said which public images it has")
        if self._digest is not None:
            self._require_public_set(site, registration)

    def joining_needs(self) -> str:
        """The public set."""
        return f"each site needs images under the name {self.public!r} in its grandrounds.json, the same at all sites"

    def participants(self, well: list[str]) -> list[str]:
        """The sites with the public set; the first time, what most sites have is the public set.

        Raises:
            GrandRoundsError: if too few have the public set.
        """
        if self._digest is None:
            found = Counter(self.registered[site].facts[PUBLIC] for site in well)
            self._digest = found.most_common(1)[0][0] if found else None
        refused = len(self.refused)
        for site in well:
            try:
                self._require_public_set(site, self.registered[site])
            except MessageError as error:
                self.refuse(site, str(error))
                # Another start of the run asks it again: its images may have been mended.
                del self.registered[site]
        having = [site for site in well if site not in self.refused]
        if len(self.refused) > refused:
            self.require_enough(having)
        if self._rows is None and having:
            self._open(int(self.registered[having[0]].scalars["public_images"]))
        return having

    def payload_for(self, site: str) -> Payload:
        """The sum of the last exchange, the same for all sites."""
        told: dict[str, Any] = {"rounds": {}, "weights": {}}
        parts: dict[str, State] = {}
        if self._sum and self._enough(self._sum):
            told = {"rounds": dict(self._sum.rounds), "weights": dict(self._sum.weights)}
            parts[ROWS] = self.encoded_sum(self._sum)
        exchange = {"options": asdict(self.exchange), "rounds": self.rounds, "contributors": told}
        return self.payload(parts, public=self.public, exchange=exchange)

    def encoded_sum(self, row_sum: RowSum) -> State:
        """The sum as it travels."""
        return {"mean": encode_sum(row_sum, self.exchange.wire)}

    def check(self, site: str, result: Result) -> None:
        """Refuse rows that are none, or about other images.

        Raises:
            MessageError: naming what is wrong.
        """
        if not self._publishing:
            if ROWS in result.releases:
                raise MessageError(f"{site} has sent rows in a round in which nobody learns from them")
            return
        release = result.releases.get(ROWS)
        if release is None or release.kind is not self.row_kind or set(release.tensors) != {"rows"}:
            raise MessageError(f"{site} must send its rows as {self.row_kind.replace('_', ' ')}")
        self._known_rows.check(site, self._message(site, result), self.round_number, self._images)

    def absorb(self, site: str, result: Result) -> None:
        """Keep the rows."""
        if self._publishing:
            self._known_rows.accept(site, self._message(site, result), self.round_number, self._images)

    def close_round(self) -> None:
        """Add up the rows."""
        self._sum = self._known_rows.total(self.round_number) if self._publishing else None

    def model(self) -> None:
        """There is none: each site scores and tests its own."""

    def round_notes(self) -> dict[str, Any]:
        """Who is in the sum, with rows from which round and what weight, and what can be told of the sum.

        ``withheld`` says that it has too few contributors to be sent.
        """
        if self._sum is None:
            return {}
        notes: dict[str, Any] = {"contributors": dict(self._sum.rounds)}
        if not self._enough(self._sum):
            notes["withheld"] = True
        if self.exchange.weighting != "uniform":
            notes["weights"] = {site: round(weight, 6) for site, weight in self._sum.weights.items()}
        return notes | self.sum_notes(self._sum)

    def sum_notes(self, row_sum: RowSum) -> dict[str, Any]:
        """How undecided the mean of the rows is, in nats, if it is one of probabilities."""
        if self.exchange.content != "probabilities":
            return {}
        entropy = torch.special.entr(mean_of_all(row_sum).double()).sum(dim=1).mean()
        return {"row_entropy": round(float(entropy), 5)}

    def fingerprint(self) -> dict[str, Any]:
        """What is exchanged, beside the rest."""
        return {
            **super().fingerprint(),
            **asdict(self.exchange),
            "public": self.public,
            "min_contributors": self.min_contributors,
        }

    def state_dict(self) -> dict[str, Any]:
        """The public set's digest and size, and the latest rows of all sites."""
        rows = self._rows.state_dict() if self._rows else None
        images = self._exchanges.images if self._exchanges else 0
        return {"digest": self._digest, "images": images, "rows": rows}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what survived.

        Raises:
            CheckpointError: if the server's list is of another public set.
        """
        if self._reference and state["digest"] != self._digest:
            raise CheckpointError(
                f"the checkpoint is about another public set ({str(state['digest'])[:12]}) than {self.public_list} lists "
                f"({str(self._digest)[:12]}); give the list that the run began with, or take another run_name"
            )
        self._digest = state["digest"]
        if state["rows"]:
            self._open(state["images"])
            self._known_rows.load_state_dict(state["rows"])
            self._sum = self._known_rows.total(self.round_number)

    def _open(self, images: int) -> None:
        """Prepare the exchanges, now that the public set is known."""
        self._exchanges = Exchanges(images, self.seed, self.exchange)
        self._exchanges.epochs(self.rounds)
        self._rows = self.row_exchange(str(self._digest), self._exchanges.per_epoch)

    def row_exchange(self, public: str, per_epoch: int) -> RowExchange:
        """What takes the rows about this public set and adds them up."""
        return RowExchange(public, len(self.problem.classes), self.exchange, per_epoch)

    @property
    def _known_rows(self) -> RowExchange:
        if self._rows is None:
            raise RuntimeError("no site has said which public images it has")
        return self._rows

    @property
    def _publishing(self) -> bool:
        return self.exchange.content != "none" and self.round_number < self.rounds

    def _enough(self, row_sum: RowSum) -> bool:
        """Whether a sum hides whose rows it is made of: a weight of zero adds nothing that could hide another's."""
        return sum(weight > 0 for weight in row_sum.weights.values()) >= self.min_contributors

    @property
    def _images(self) -> int:
        return len(self._exchanges.part(self.round_number)) if self._exchanges else 0

    def _message(self, site: str, result: Result) -> RowMessage:
        loss, change = result.metrics.get(LOSS), result.metrics.get(CHANGE, 0.0)
        rows = result.releases[ROWS].tensors["rows"]
        return RowMessage(self.round_number, rows, self.registered[site].facts[PUBLIC], loss, change)

    def _require_public_set(self, site: str, registration: Registration) -> None:
        told = registration.facts[PUBLIC]
        if told != self._digest:
            having = natural_sorted(s for s, other in self.registered.items() if other.facts[PUBLIC] == self._digest)
            raise MessageError(
                f"{site} has another public set ({told[:12]}) than {', '.join(having) or 'the server'} "
                f"({str(self._digest)[:12]}); copy the images again, or set controller.public_list to be told which differs"
            )
