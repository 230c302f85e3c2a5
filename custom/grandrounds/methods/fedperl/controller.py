"""FedPerl on the server: who resembles whom, and which peers a site gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, ClassVar

import torch
from torch import Tensor

from grandrounds.federation.aggregation import apply_update
from grandrounds.federation.server.tensor_files import PARTS, TensorFileStore
from grandrounds.methods.fedperl.delivery import LOST, PeerDelivery
from grandrounds.methods.fedperl.options import PeerOptions, StoreOptions
from grandrounds.methods.fedperl.peer_selection import (
    VALIDATED,
    nearest_peers,
    noise_image,
    passing_peers,
    random_peers,
)
from grandrounds.methods.fedperl.peers import anonymised_peer, similar_peers
from grandrounds.methods.fedperl.similarity_tracker import SimilarityTracker
from grandrounds.methods.fedperl.store import ModelStore
from grandrounds.methods.supervised.controller import FedAvgController
from grandrounds.methods.supervised.loss import median_class_weights, supervised_loss
from grandrounds.models.registry import build_model
from grandrounds.options import take_options
from grandrounds.protocol.messages import GLOBAL, Payload, Result, State
from grandrounds.seeding import numpy_generator


class FedPerlController(FedAvgController):
    """Federated averaging in which each site also gets the models most like its own (Bdair et al., MELBA 2022).

    After each round the server keeps what every participant has trained and compares all it has kept. In the next round a
    site gets its peers as they were at the end of their last training; all choices of a round are made from the state at
    its start, so they do not depend on who answers first.

    Args:
        options: those of :class:`~grandrounds.methods.fedperl.options.PeerOptions`, of
            :class:`~grandrounds.methods.fedperl.options.StoreOptions` and of
            :class:`~grandrounds.methods.supervised.controller.FedAvgController`.
    """

    option_groups: ClassVar[tuple[type, ...]] = (PeerOptions, StoreOptions)

    def __init__(self, **options: Any) -> None:
        self.choice, others = take_options(PeerOptions, options)
        self.storage, others = take_options(StoreOptions, others)
        super().__init__(**others)
        choice = self.choice
        self.trained = SimilarityTracker(
            choice.features, choice.feature_scaling, with_validation=choice.validation_features
        )
        self._delivery = PeerDelivery()

    def start(self) -> None:
        """Build the initial model, note which entries are parameters, and make what keeps and describes models."""
        super().start()
        self.store = ModelStore(TensorFileStore(self.folder / PARTS), self.storage.peer_memory_mib << 20)
        self._network = build_model(self.problem.model_spec(pretrained=False), self.seed).eval()
        self.trained.parameters = frozenset(name for name, _ in self._network.named_parameters())
        if self.choice.needs_validation:
            self.server_images(self.choice.needs_validation).require_validation()
        if self.choice.peer_choice in ("fedmatch", "fedmatch_released"):
            self._noise = noise_image(
                self.choice.peer_choice,
                self.problem.channels,
                self.problem.image_size,
                numpy_generator(self.seed, "noise image"),
            )

    def open_round(self, sites: list[str]) -> None:
        """Expect updates from these sites and choose peers for them."""
        super().open_round(sites)
        self._candidates = {site: self._candidates_for(site) for site in sites}
        self._chosen = {site: self._passing(site, candidates) for site, candidates in self._candidates.items()}
        trained, now = self.store.rounds, self.round_number
        self._ages = {site: [now - trained[peer] for peer in peers] for site, peers in self._chosen.items()}
        self._note_few_models()

    def _candidates_for(self, site: str) -> list[str]:
        """The peers of a site before any policy."""
        choice, known = self.choice, self.trained.sites
        if not choice.sends_in(self.round_number):
            return []
        generator = numpy_generator(self.seed, "peers", site, self.round_number)
        if site not in known:
            return random_peers(site, [*known, site], choice.peers, generator) if choice.newcomers == "random" else []
        if choice.peer_choice == "random":
            return random_peers(site, known, choice.peers, generator)
        if choice.peer_choice == "similar":
            return similar_peers(site, known, self.trained.similarity, choice.peers)
        return nearest_peers(site, self.trained.embeddings, choice.peers)

    def _passing(self, site: str, candidates: list[str]) -> list[str]:
        """Those that the policy lets pass, if they are enough to be anonymous."""
        choice = self.choice
        if site in self.store.rounds or choice.policy == "gated_validation":
            candidates = passing_peers(
                candidates,
                choice.policy,
                gate=choice.gate,
                scale=choice.gate_scale,
                target=site,
                accuracy=self.trained.accuracy(),
                similarity=self.trained.similarities_of(site),
            )
        elif choice.policy != "none":
            candidates = []  # a newcomer has nothing that its peers could be compared with
        return [] if choice.anonymise and len(candidates) < choice.pa_min_peers else candidates

    def _note_few_models(self) -> None:
        others = len(self.store.rounds) - 1
        if self.choice.sends_in(self.round_number) and max(others, 0) < self.choice.peers:
            self.record.event("few_peers", round=self.round_number, asked=self.choice.peers, known=max(others, 0))

    def payload_for(self, site: str) -> Payload:
        """The global model and the site's peers, if it has any yet."""
        peers = self._chosen[site]
        if self.choice.anonymise:
            states = [self.store.get(name) for name in peers]
            peer = {"peer-1": self.store.for_message(anonymised_peer(states))} if states else {}
            return self.payload({GLOBAL: self.sent, **peer})
        parts, values = self._delivery.prepare(site, peers, self.store.rounds, self.store.get)
        return self.payload({GLOBAL: self.sent, **parts}, **values)

    def absorb(self, site: str, result: Result) -> None:
        """Keep what the site has trained, and add the update to the mean."""
        if result.update is not None:
            self.store.receive(site, self.round_number, apply_update(self.sent, result.update))
        super().absorb(site, result)
        if result.metrics.get(LOST):
            self._delivery.forget(site)
        else:
            self._delivery.confirm(site)

    def missed(self, site: str) -> None:
        """Let the mean go on without the site, and send it everything again."""
        super().missed(site)
        self.store.give_up(site)
        self._delivery.forget(site)

    def close_round(self) -> None:
        """Average, describe what each participant has trained, and compare all that have trained."""
        super().close_round()
        for number, site in enumerate(self.store.settle(max(self._checkpointed, default=0))):
            trained = self.store.get(site)
            self.trained.describe(site, trained)
            self._describe(site, trained, first=number == 0)
        self.trained.compare()
        rows = [[round(value, 12) for value in row] for row in self.trained.similarity.tolist()]
        cosines = self.trained.raw_cosines()
        self.record.event(
            "similarity", round=self.round_number, sites=self.trained.sites, matrix=rows, raw_cosines=cosines
        )

    def _describe(self, site: str, trained: State, first: bool) -> None:
        """What choices and policies need to know of a model, computed once for every upload."""
        if self.choice.needs_validation:
            labels, probabilities = self.server_images(self.choice.needs_validation).predictions(trained)
            truth = torch.from_numpy(labels)
            weights = median_class_weights(torch.bincount(truth, minlength=probabilities.shape[1]))
            floor = torch.finfo(probabilities.dtype).tiny
            loss = supervised_loss(probabilities.clamp_min(floor).log().double(), truth, weights)
            accuracy = (probabilities.argmax(dim=1) == truth).double().mean()
            self.trained.validation[site] = torch.stack([accuracy, loss])
        if self.choice.peer_choice in ("fedmatch", "fedmatch_released"):
            released = self.choice.peer_choice == "fedmatch_released"
            # Their aggregation overwrites the first update before the embeddings are made.
            self._network.load_state_dict(self.state if released and first else trained)
            with torch.no_grad():
                logits = self._network(self._noise)[0]
            self.trained.embeddings[site] = logits if released else torch.softmax(logits, dim=0)

    def round_notes(self) -> dict[str, Any]:
        """The peers of each participant, those that the policy was asked about, and how many rounds ago they have trained.

        With a policy that needs it, also every known model's accuracy on the server's validation images.
        """
        notes = {
            **super().round_notes(),
            "peers": self._chosen,
            "candidates": self._candidates,
            "peer_ages": self._ages,
        }
        if self.choice.policy in VALIDATED:
            notes["peer_validation"] = self.trained.accuracy()
        return notes

    def fingerprint(self) -> dict[str, Any]:
        """What shapes the choice of peers, beside the rest."""
        return {**super().fingerprint(), **asdict(self.choice)}

    def state_dict(self) -> dict[str, Any]:
        """The global model, and what was computed of the sites' models."""
        return {**super().state_dict(), "described": self.trained.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what survived."""
        super().load_state_dict(state)
        self.trained.load_state_dict(state["described"])

    def snapshots(self) -> Mapping[str, tuple[int, State | None]]:
        """What each site has trained last."""
        return self.store.snapshots()

    def load_snapshots(self, snapshots: Mapping[str, tuple[int, dict[str, Tensor]]]) -> None:
        """Take over what each site has trained last, one at a time, and compare."""
        for site, (round_number, state) in snapshots.items():
            self.store.restore(site, round_number, state)
            self.trained.describe(site, state)
        self.trained.compare()
