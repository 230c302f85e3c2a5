"""FedIRM at the server: the mean of the models, and the mean of the labelled sites' class relation matrices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from grandrounds.errors import ConfigurationError, GrandRoundsError, MessageError
from grandrounds.federation.server.aggregate import Aggregator
from grandrounds.federation.server.averaging import AveragingController
from grandrounds.federation.server.means import OrderedMean
from grandrounds.federation.server.selection import ModelSelection
from grandrounds.federation.server.sums import FEWEST, SecureMean
from grandrounds.methods.fedirm.executor import FACTOR, PSEUDO_RELATION, RELATION
from grandrounds.methods.fedirm.options import ServerOptions
from grandrounds.methods.fedirm.relation import MIN_SUPPORT, Relation, mean_relation, relation_of_sum, require_relation
from grandrounds.ordering import natural_sorted
from grandrounds.protocol.messages import GLOBAL, Payload, Registration, ReleaseKind, Result, State
from grandrounds.protocol.names import VALIDATION
from grandrounds.protocol.problem import Problem

LABELLED_CHOICE = "labelled_choice"


class FedIRMController(AveragingController):
    """Federated averaging in which labelled sites' relation matrices reach the sites without labels.

    Each site registers once whether it has labels. Labelled sites train in every round; the mean of a round's matrices goes
    to unlabelled sites in the next one (Liu et al., MICCAI 2021, section 2.3). Rows without enough support at any labelled
    site are masked, and recorded.
    """

    registrations: ClassVar[bool] = True
    needs_exclusive: ClassVar[bool] = False
    server_options: ServerOptions

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if self.server_options.labelled_weight != 1 and not self.defence.is_mean:
            raise ConfigurationError(f"labelled_weight needs aggregation=mean, got {self.defence.rule}")
        self.relation: Relation | None = None
        self._matrices: dict[str, dict[str, Relation]] = {}
        self._answered: set[str] = set()
        self._called_back: list[str] = []
        self._learned_labels = False
        self._labelled_selection = ModelSelection(self.run.metric, self.problem)

    def has_labels(self, site: str) -> bool:
        """Whether a site has registered with labels."""
        return self.registered[site].scalars.get("labelled") == 1

    def check_registration(self, site: str, registration: Registration) -> None:
        """Refuse a site that does not report whether it has labels: its privacy policy may withhold that number.

        Raises:
            MessageError: naming the site.
        """
        if registration.scalars.get("labelled") not in (0, 1):
            raise MessageError(
                f"{site} has not reported whether it has labels; allow the number 'labelled' in the site's privacy policy"
            )

    def participants(self, available: list[str]) -> list[str]:
        """Labelled sites, and from ``unlabelled_start`` on the others.

        If no labelled site is available, the connected ones are called back from their pause.

        Raises:
            ConfigurationError: if all connected sites have joined and none has labels.
            GrandRoundsError: if no joined site has labels and others have not joined, or if no labelled site is connected.
        """
        if not any(self.has_labels(site) for site in self.registered):
            available = natural_sorted({*available, *self._wait_for_labels()})
        labelled = [site for site in available if self.has_labels(site)]
        if self.is_secure() and self.round_number == 1 and len(labelled) < FEWEST:
            raise ConfigurationError(
                f"a secure sum is of {FEWEST} or more sites with labels, and {len(labelled)} have some "
                f"({', '.join(labelled) or 'none'}): label images, or have the sites take the policy open"
            )
        self._called_back = [] if labelled else self._call_back()
        if self.server_options.unlabelled_sites_train(self.round_number - 1):
            return natural_sorted({*available, *self._called_back})
        return labelled or self._called_back

    def _wait_for_labels(self) -> list[str]:
        """Ask the sites that have not joined once more: training cannot start without a labelled site."""
        joined = self.dispatcher.register(self.dispatcher.connected_sites())
        if any(self.has_labels(site) for site in joined):
            return joined
        late = [site for site in self.dispatcher.connected_sites() if site not in self.registered]
        known = "; ".join([f"joined: {', '.join(self.registered) or 'none'}", *self.sites.refused.values()])
        problem = f"no site that has joined has a labelled training image ({known})"
        if late:
            raise GrandRoundsError(
                f"{problem}, and {', '.join(late)} did not join: see their logs and start the run again; if they are only "
                "slow, set controller.grace to null or higher, or raise controller.round_timeout"
            )
        raise ConfigurationError(
            f"{problem}, and training needs labels; label some images, or start a site that has labels"
        )

    def _call_back(self) -> list[str]:
        """The connected labelled sites, all of them paused: a round without labels would be worse than their failures."""
        connected = [
            site for site in self.dispatcher.connected_sites() if site in self.registered and self.has_labels(site)
        ]
        self.record.event("no_labelled_site", round=self.round_number, called_back=connected)
        if not connected:
            known = natural_sorted(site for site in self.registered if self.has_labels(site))
            raise GrandRoundsError(
                f"round {self.round_number}: no site with labels is connected, and the others would train on each other's "
                f"pseudo-labels only; start {' or '.join(known)}, then the run again"
            )
        return connected

    def open_round(self, sites: list[str]) -> None:
        """Expect updates and relation matrices from these sites."""
        super().open_round(sites)
        self._matrices = {RELATION: {}, PSEUDO_RELATION: {}}
        self._answered = set()
        self._scores: dict[str, dict[str, float]] = {}
        self._trained = {
            "labelled": [site for site in sites if self.has_labels(site)],
            "unlabelled": [site for site in sites if not self.has_labels(site)],
        }
        if self.round_number == 1 and self.server_options.unlabelled_start is not None and self._all_have_labels():
            self.log_warning(self.fl_ctx, "every site has a labelled training image: no site trains without labels")

    def new_secure_mean(self) -> Aggregator:
        """The mean in which labelled sites' weights have a factor that they apply themselves."""
        if self.server_options.labelled_weight != 1 and self.averaging.weighting != "samples":
            raise ConfigurationError("labelled_weight is a factor of images in secure sums: set weighting=samples")
        return super().new_secure_mean()

    def sites_ready(self, sites: list[str]) -> None:
        """Refuse secure sums of rows that sites release and the server would leave out.

        Raises:
            ConfigurationError: then.
        """
        super().sites_ready(sites)
        at_sites = self.job_arguments.get("min_support", MIN_SUPPORT)
        if self.is_secure() and self.server_options.min_support > at_sites:
            raise ConfigurationError(
                f"secure sums have every row that a site releases: raise executor.min_support from {at_sites} to "
                f"{self.server_options.min_support}, as controller.min_support"
            )

    def summed_releases(self) -> Mapping[str, ReleaseKind]:
        """Updates, and relation matrices where some site will match them."""
        matrices = {RELATION: ReleaseKind.CLASS_STATISTICS} if self._relation_wanted() else {}
        return {**super().summed_releases(), **matrices}

    def new_mean(self) -> Aggregator:
        """The mean in which labelled sites' weights have a factor."""
        return super().new_mean() if self.server_options.labelled_weight == 1 else OrderedMean(factor=self.factor)

    def factor(self, site: str) -> float:
        """The factor of a site's weight in the mean."""
        return self.server_options.labelled_weight if self.has_labels(site) else 1.0

    def payload_for(self, site: str) -> Payload:
        """The global model, and for an unlabelled site the mean relation matrix, if there is one yet."""
        labelled = self.has_labels(site)
        if self.is_secure():  # all sites are asked the same: masks of others do not cancel
            matched = {} if self.relation is None else {RELATION: self.relation._asdict()}
            of_sum = {"labelled": None, FACTOR: self.server_options.labelled_weight}
            return self.payload({GLOBAL: self.sent, **matched}, relation_wanted=self._relation_wanted(), **of_sum)
        matched = {} if labelled or self.relation is None else {RELATION: self.relation._asdict()}
        return self.payload(
            {GLOBAL: self.sent, **matched}, labelled=labelled, relation_wanted=labelled and self._relation_wanted()
        )

    def _relation_wanted(self) -> bool:
        """Whether an unlabelled site may match this round's matrix in the next round."""
        return not self._all_have_labels() and self.server_options.unlabelled_sites_train(self.round_number)

    def _all_have_labels(self) -> bool:
        return all(self.has_labels(site) for site in self.registered)

    def check(self, site: str, result: Result) -> None:
        """Refuse an update that does not fit the model, and an invalid relation matrix.

        Raises:
            MessageError: naming what is wrong.
        """
        super().check(site, result)
        allowed = RELATION if self.has_labels(site) else PSEUDO_RELATION
        for name in (RELATION, PSEUDO_RELATION):
            if name in result.releases and name != allowed:
                raise MessageError(f"{site} joined {_words(self.has_labels(site))} and must not send {name!r}")
            _relation(result, name, self.problem)

    def absorb(self, site: str, result: Result) -> None:
        """Add the update to the mean, and keep the matrix."""
        super().absorb(site, result)
        self._answered.add(site)
        if self.has_labels(site):
            self._scores[site] = dict(result.metrics)
        for name, matrices in self._matrices.items():
            relation = _relation(result, name, self.problem)
            if relation is not None:
                matrices[site] = relation

    def close_round(self) -> None:
        """Average models and matrices; without a new matrix the last one is kept.

        A round without an answer of a labelled site does not change the model.

        Raises:
            GrandRoundsError: if no labelled site has answered, and none ever has or those asked had been called back.
        """
        asked = self._trained["labelled"]
        answered = not self._answered.isdisjoint(asked)
        if asked and not answered and (self._called_back or not self._learned_labels):
            again = "did not answer again" if self._called_back else "did not answer, and the model has no labels yet"
            raise GrandRoundsError(
                f"round {self.round_number}: no site with labels is available ({', '.join(asked)} {again}), and the others "
                "would train on each other's pseudo-labels only; see the sites' logs, then start the run again"
            )
        counted = self.dispatcher.counts.items()
        counts = {site: of[VALIDATION] for site, of in counted if site in self._scores and VALIDATION in of}
        self._labelled_selection.offer(self.round_number - 1, self._scores, self.sent, counts)
        if answered:
            self._learned_labels = True
            super().close_round()
        else:
            self.record.event("not_averaged", round=self.round_number, answered=natural_sorted(self._answered))
        labelled, pseudo = self._matrices[RELATION], self._matrices[PSEUDO_RELATION]
        if summed := self._summed_relation():
            self.relation = summed
            self.record.event("relation", round=self.round_number, **_plain(summed), sites=[], pseudo_relations={})
        if labelled:
            matrices = [labelled[site] for site in natural_sorted(labelled)]
            self.relation = mean_relation(matrices, self.server_options.min_support)
        if labelled or pseudo:
            self.record.event(
                "relation",
                round=self.round_number,
                **(_plain(self.relation) if self.relation else {}),
                sites=natural_sorted(labelled),
                pseudo_relations={site: _plain(pseudo[site]) for site in natural_sorted(pseudo)},
            )

    def _summed_relation(self) -> Relation | None:
        """The mean matrix of a secure sum; None where there was none, or it is lost."""
        opened = self.aggregator.opened if isinstance(self.aggregator, SecureMean) else None
        sums = opened.releases.get(RELATION) if opened else None
        return relation_of_sum(sums["matrix"], sums["support"].round().long()) if sums else None

    def unsupported(self) -> list[str]:
        """The classes, or answers about findings, whose row is masked."""
        known = self.relation.known.tolist() if self.relation else []
        rows = self.problem.kind.answer_names(self.problem.classes)
        return [name for name, supported in zip(rows, known, strict=False) if not supported]

    def round_notes(self) -> dict[str, Any]:
        """The labelled and unlabelled participants, the sites whose matrices count, and the classes without support.

        ``labelled_choice`` is the round whose model the labelled sites' validation images alone would select; it is never
        the last round, from whose model no site trains.
        """
        return {
            **super().round_notes(),
            **self._trained,
            "relation_from": natural_sorted(self._matrices[RELATION]),
            "unsupported": self.unsupported(),
            "labelled_choice": self._labelled_selection.choice,
        }

    def state_dict(self) -> dict[str, Any]:
        """The global model, the last relation matrix, and the labelled sites' selection."""
        choice = {name: value for name, value in self._labelled_selection.state_dict().items() if name != "model"}
        relation = self.relation._asdict() if self.relation else None
        return {
            **super().state_dict(),
            RELATION: relation,
            "learned_labels": self._learned_labels,
            LABELLED_CHOICE: choice,
        }

    def snapshots(self) -> Mapping[str, tuple[int, State | None]]:
        """The model that the labelled sites' validation images would select."""
        model, choice = self._labelled_selection.model, self._labelled_selection.choice
        chosen = {} if model is None else {LABELLED_CHOICE: (int(choice["round"]), model)}
        return {**super().snapshots(), **chosen}

    def load_snapshots(self, snapshots: Mapping[str, tuple[int, dict[str, Tensor]]]) -> None:
        """Restore :meth:`snapshots`."""
        super().load_snapshots({name: value for name, value in snapshots.items() if name != LABELLED_CHOICE})
        self._labelled_selection.model = snapshots[LABELLED_CHOICE][1] if LABELLED_CHOICE in snapshots else None

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore :meth:`state_dict`."""
        super().load_state_dict(state)
        self.relation = Relation(**state[RELATION]) if state[RELATION] else None
        self._learned_labels = state["learned_labels"]
        self._labelled_selection.load_state_dict({**state[LABELLED_CHOICE], "model": None})


def _relation(result: Result, name: str, problem: Problem) -> Relation | None:
    if name not in result.releases:
        return None
    release = result.releases[name]
    if release.kind is not ReleaseKind.CLASS_STATISTICS or release.tensors.keys() != {"matrix", "support"}:
        raise MessageError(f"{name} must be class statistics with matrix and support, got {sorted(release.tensors)}")
    relation = Relation(**release.tensors)
    try:
        require_relation(relation, problem.kind.relation_shape(len(problem.classes)), name)
    except ValueError as error:
        raise MessageError(str(error)) from error
    if relation.support.dtype != torch.int64:
        raise MessageError(f"the support of {name} must be integers (int64), got {relation.support.dtype}")
    return relation


def _plain(relation: Relation) -> dict[str, Any]:
    rows = [[round(value, 6) for value in row] for row in relation.matrix.tolist()]
    return {"matrix": rows, "support": relation.support.tolist()}


def _words(labelled: bool) -> str:
    return "with labels" if labelled else "without labels"
