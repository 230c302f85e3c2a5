"""FedIRM on the server: the mean of the models, and the mean of what labelled sites take each disease for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, ClassVar

import torch
from torch import Tensor

from grandrounds.errors import ConfigurationError, GrandRoundsError, MessageError
from grandrounds.federation.server.averaging import AveragingController
from grandrounds.federation.server.selection import ModelSelection
from grandrounds.methods.fedirm.executor import OWN_RELATION, RELATION
from grandrounds.methods.fedirm.options import ServerOptions
from grandrounds.methods.fedirm.relation import Relation, mean_relation, require_relation
from grandrounds.methods.fedirm.schedule import unlabelled_sites_train
from grandrounds.options import take_options
from grandrounds.ordering import natural_sorted
from grandrounds.protocol.messages import GLOBAL, Payload, ReleaseKind, Result, State
from grandrounds.protocol.registration import Registration

LABELLED_CHOICE = "labelled_choice"


class FedIRMController(AveragingController):
    """Federated averaging in which labelled sites' relation matrices reach the sites without labels.

    Each site says once whether it has labels. Labelled sites train in every round; the mean of the matrices of a round goes
    to unlabelled sites in the next (Liu et al., MICCAI 2021, section 2.3). A row that no labelled site can support is
    masked, and the record says so.

    Args:
        options: those of :class:`~grandrounds.methods.fedirm.options.ServerOptions` and
            :class:`~grandrounds.federation.server.averaging.AveragingController`.
    """

    registrations: ClassVar[bool] = True
    option_groups: ClassVar[tuple[type, ...]] = (ServerOptions,)

    def __init__(self, **options: Any) -> None:
        self.choice, others = take_options(ServerOptions, options)
        super().__init__(**others)
        self.relation: Relation | None = None
        self._of_sites: dict[str, dict[str, Relation]] = {}
        self._came: set[str] = set()
        self._called_back: list[str] = []
        self._taught = False
        self._labelled_choice = ModelSelection(self.run.selection_metric)

    def has_labels(self, site: str) -> bool:
        """What a site has said of itself."""
        return self.registered[site].scalars.get("labelled") == 1

    def check_registration(self, site: str, registration: Registration) -> None:
        """Refuse a site that does not say whether it has labels: a privacy policy may keep that number back.

        Raises:
            MessageError: naming the site.
        """
        if registration.scalars.get("labelled") not in (0, 1):
            raise MessageError(
                f"{site} has not said whether it has labels; let the number 'labelled' leave by the site's privacy policy"
            )

    def participants(self, well: list[str]) -> list[str]:
        """Labelled sites, and from ``unlabelled_start`` on the others.

        Where no labelled site is well, those that are connected are called back from their pause.

        Raises:
            ConfigurationError: if all connected sites have joined and none has labels.
            GrandRoundsError: if none that has joined has labels and others have not joined, or if no site with labels is
                connected any more.
        """
        if not any(self.has_labels(site) for site in self.registered):
            well = natural_sorted({*well, *self._wait_for_labels()})
        labelled = [site for site in well if self.has_labels(site)]
        self._called_back = [] if labelled else self._call_back()
        start = self.choice.unlabelled_start
        if start is not None and unlabelled_sites_train(self.round_number - 1, start):
            return natural_sorted({*well, *self._called_back})
        return labelled or self._called_back

    def _wait_for_labels(self) -> list[str]:
        """Ask once more those that have not joined: nobody can train before a site with labels has, so it is waited for."""
        joined = self.register_sites(self.connected_sites())
        if any(self.has_labels(site) for site in joined):
            return joined
        late = [site for site in self.connected_sites() if site not in self.registered]
        known = "; ".join([f"joined: {', '.join(self.registered) or 'none'}", *self.refused.values()])
        told = f"no site that has joined has a labelled training image ({known})"
        if late:
            raise GrandRoundsError(
                f"{told}, and {', '.join(late)} did not join: see why in their logs and start the run again; where they are "
                "only slow, set controller.grace to null or higher, or raise controller.round_timeout"
            )
        raise ConfigurationError(
            f"{told}, and somebody must say what the diseases look like; label some images, or start a site that has labels"
        )

    def _call_back(self) -> list[str]:
        """The connected sites with labels, all of them paused: what they have missed weighs less than a round without."""
        connected = [site for site in self.connected_sites() if site in self.registered and self.has_labels(site)]
        self.record.event("no_labelled_site", round=self.round_number, called_back=connected)
        if not connected:
            known = natural_sorted(site for site in self.registered if self.has_labels(site))
            raise GrandRoundsError(
                f"round {self.round_number}: no site with labels is connected, and the others would train on each other's "
                f"guesses; start {' or '.join(known)}, then the run again"
            )
        return connected

    def open_round(self, sites: list[str]) -> None:
        """Expect an update from each of these sites, and relation matrices."""
        super().open_round(sites)
        self._of_sites = {RELATION: {}, OWN_RELATION: {}}
        self._came = set()
        self._scores: dict[str, dict[str, float]] = {}
        self._trained = {
            "labelled": [site for site in sites if self.has_labels(site)],
            "unlabelled": [site for site in sites if not self.has_labels(site)],
        }
        if self.round_number == 1 and self.choice.unlabelled_start is not None and self._all_have_labels():
            self.log_warning(self.fl_ctx, "every site has a labelled training image: none trains as one without labels")

    def payload_for(self, site: str) -> Payload:
        """The global model, and for a site without labels the labelled sites' matrix, if there is one yet."""
        labelled = self.has_labels(site)
        matched = {} if labelled or self.relation is None else {RELATION: self.relation._asdict()}
        return self.payload(
            {GLOBAL: self.sent, **matched}, labelled=labelled, relation_wanted=labelled and self._relation_wanted()
        )

    def _relation_wanted(self) -> bool:
        """Whether a site without labels may match this round's matrix in the next round."""
        start = self.choice.unlabelled_start
        return start is not None and not self._all_have_labels() and unlabelled_sites_train(self.round_number, start)

    def _all_have_labels(self) -> bool:
        return all(self.has_labels(site) for site in self.registered)

    def check(self, site: str, result: Result) -> None:
        """Refuse an update that does not fit the model, and a relation matrix that is none.

        Raises:
            MessageError: naming what is wrong.
        """
        super().check(site, result)
        allowed = RELATION if self.has_labels(site) else OWN_RELATION
        for name in (RELATION, OWN_RELATION):
            if name in result.releases and name != allowed:
                raise MessageError(f"{site} joined {_words(self.has_labels(site))} and must not send {name!r}")
            _relation(result, name, len(self.problem.classes))

    def absorb(self, site: str, result: Result) -> None:
        """Add the update to the mean, and keep the matrix."""
        super().absorb(site, result)
        self._came.add(site)
        if self.has_labels(site):
            self._scores[site] = dict(result.metrics)
        for name, found in self._of_sites.items():
            relation = _relation(result, name, len(self.problem.classes))
            if relation is not None:
                found[site] = relation

    def close_round(self) -> None:
        """Average models and matrices; without a new matrix the last one stays.

        A round in which no site with labels has answered leaves the model as it was.

        Raises:
            GrandRoundsError: if none has answered, and none ever has or those that were asked had been called back.
        """
        asked = self._trained["labelled"]
        answered = not self._came.isdisjoint(asked)
        if asked and not answered and (self._called_back or not self._taught):
            again = (
                "gave no answer again" if self._called_back else "gave no answer, and nobody has taught the model yet"
            )
            raise GrandRoundsError(
                f"round {self.round_number}: no site with labels is well ({', '.join(asked)} {again}), and the "
                "others would train on each other's guesses; see the sites' logs, then start the run again"
            )
        self._labelled_choice.offer(self.round_number - 1, self._scores, self.sent)
        if answered:
            self._taught = True
            super().close_round()
        else:
            self.record.event("not_averaged", round=self.round_number, answered=natural_sorted(self._came))
        told, own = self._of_sites[RELATION], self._of_sites[OWN_RELATION]
        if told:
            self.relation = mean_relation([told[site] for site in natural_sorted(told)], self.choice.min_support)
        if told or own:
            self.record.event(
                "relation",
                round=self.round_number,
                **(_plain(self.relation) if self.relation else {}),
                sites=natural_sorted(told),
                own={site: _plain(own[site]) for site in natural_sorted(own)},
            )

    def unsupported(self) -> list[str]:
        """The classes whose row is masked."""
        if self.relation is None:
            return []
        known = self.relation.known.tolist()
        return [name for name, told in zip(self.problem.classes, known, strict=True) if not told]

    def round_notes(self) -> dict[str, Any]:
        """Who trained as what, whose matrices count, and the classes of which no site has enough images.

        ``labelled_choice`` is the round whose model the validation labels of the sites with labels alone would choose; the
        model of the last round is not among them, because nobody trains from it.
        """
        return {
            **super().round_notes(),
            **self._trained,
            "relation_from": natural_sorted(self._of_sites[RELATION]),
            "unsupported": self.unsupported(),
            "labelled_choice": self._labelled_choice.choice,
        }

    def fingerprint(self) -> dict[str, Any]:
        """When unlabelled sites begin and which rows count, beside the rest."""
        return {
            **super().fingerprint(),
            **asdict(self.choice),
        }

    def state_dict(self) -> dict[str, Any]:
        """The global model, the last relation matrix, and how the labelled sites' choice stands."""
        choice = {name: value for name, value in self._labelled_choice.state_dict().items() if name != "model"}
        relation = self.relation._asdict() if self.relation else None
        return {**super().state_dict(), RELATION: relation, "taught": self._taught, LABELLED_CHOICE: choice}

    def snapshots(self) -> Mapping[str, tuple[int, State | None]]:
        """The model that the labelled sites' validation labels would choose."""
        model, choice = self._labelled_choice.model, self._labelled_choice.choice
        chosen = {} if model is None else {LABELLED_CHOICE: (int(choice["round"]), model)}
        return {**super().snapshots(), **chosen}

    def load_snapshots(self, snapshots: Mapping[str, tuple[int, dict[str, Tensor]]]) -> None:
        """Take it over."""
        super().load_snapshots({name: value for name, value in snapshots.items() if name != LABELLED_CHOICE})
        self._labelled_choice.model = snapshots[LABELLED_CHOICE][1] if LABELLED_CHOICE in snapshots else None

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what survived."""
        super().load_state_dict(state)
        self.relation = Relation(**state[RELATION]) if state[RELATION] else None
        self._taught = state["taught"]
        self._labelled_choice.load_state_dict({**state[LABELLED_CHOICE], "model": None})


def _relation(result: Result, name: str, classes: int) -> Relation | None:
    if name not in result.releases:
        return None
    release = result.releases[name]
    if release.kind is not ReleaseKind.CLASS_STATISTICS or release.tensors.keys() != {"matrix", "support"}:
        raise MessageError(f"{name} must be class statistics with matrix and support, got {sorted(release.tensors)}")
    relation = Relation(**release.tensors)
    try:
        require_relation(relation, classes, name)
    except ValueError as error:
        raise MessageError(str(error)) from error
    if relation.support.dtype != torch.int64:
        raise MessageError(f"the support of {name} must be whole numbers (int64), got {relation.support.dtype}")
    return relation


def _plain(relation: Relation) -> dict[str, Any]:
    rows = [[round(value, 6) for value in row] for row in relation.matrix.tolist()]
    return {"matrix": rows, "support": relation.support.tolist()}


def _words(labelled: bool) -> str:
    return "with labels" if labelled else "without labels"
