"""FedPerl at the server: similarity of the sites' models, and the peers of each site."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from grandrounds.federation.checkpoints import PARTS_FOLDER, TensorFileStore
from grandrounds.methods.fedperl.model_store import LOST, ModelStore, PeerDelivery
from grandrounds.methods.fedperl.options import PeerOptions, StoreOptions
from grandrounds.methods.fedperl.peer_selection import (
    NOISE,
    VALIDATED,
    SimilarityTracker,
    anonymised_peer,
    nearest_peers,
    noise_image,
    passing_peers,
    random_peers,
    similar_peers,
)
from grandrounds.methods.supervised.controller import FedAvgController
from grandrounds.methods.supervised.loss import median_class_weights
from grandrounds.models.inference.forward import Forward
from grandrounds.models.registry import build_model
from grandrounds.protocol.messages import GLOBAL, Payload, Result, State
from grandrounds.protocol.problem import require_whole_models
from grandrounds.protocol.tensors import apply_update
from grandrounds.seeding import numpy_generator


class FedPerlController(FedAvgController):
    """Federated averaging in which each site also gets the models most similar to its own (Bdair et al., MELBA 2022).

    The server keeps each site's model at the end of its last training and compares all of them after each round. Peers are
    selected from the state at the start of a round, so that they do not depend on the order of the answers.
    """

    needs_single_updates: ClassVar[str] = "peers are single sites' models"
    peer_options: PeerOptions
    storage: StoreOptions

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        selection = self.peer_options
        if selection.needs_validation:
            self.problem.kind.require_exclusive(selection.needs_validation, "choose peers without it")
        if selection.peer_choice in NOISE:
            self.problem.kind.require_exclusive(f"peer_choice={selection.peer_choice}", "choose another one")
        self.tracker = SimilarityTracker(
            selection.features, selection.feature_scaling, with_validation=selection.validation_features
        )
        self._delivery = PeerDelivery()

    def start(self) -> None:
        """Build the initial model, the model store, and what describes models."""
        super().start()
        selection = self.peer_options
        self.store = ModelStore(TensorFileStore(self.folder / PARTS_FOLDER), self.storage.peer_memory_mib << 20)
        self._network = build_model(self.problem.model_spec(pretrained=False), self.seed).eval()
        self.tracker.parameters = frozenset(name for name, _ in self._network.named_parameters())
        if selection.needs_validation:
            self.server_images(selection.needs_validation).require_validation()
        if selection.peer_choice in NOISE:
            require_whole_models(self.problem, f"controller.peer_choice={selection.peer_choice}")
            generator = numpy_generator(self.seed, "noise image")
            channels, side = self.problem.channels, self.problem.image_size
            self._noise = noise_image(selection.peer_choice, channels, side, generator)

    def open_round(self, sites: list[str]) -> None:
        """Expect updates from these sites, and select their peers."""
        super().open_round(sites)
        known = {*self.dispatcher.connected_sites(), *self.store.rounds}
        if obstacle := self.peer_options.obstacle(len(known), self.rounds):
            self.record.remark(obstacle)
        self._candidates = {site: self._candidates_for(site) for site in sites}
        self._peers = {site: self._passing(site, candidates) for site, candidates in self._candidates.items()}
        trained, now = self.store.rounds, self.round_number
        self._ages = {site: [now - trained[peer] for peer in peers] for site, peers in self._peers.items()}
        others = max(len(trained) - 1, 0)
        if self.peer_options.sends_in(now) and others < self.peer_options.peers:
            self.record.event("few_peers", round=now, asked=self.peer_options.peers, known=others)

    def _candidates_for(self, site: str) -> list[str]:
        """The peers of a site before any policy."""
        selection, known = self.peer_options, self.tracker.sites
        if not selection.sends_in(self.round_number):
            return []
        generator = numpy_generator(self.seed, "peers", site, self.round_number)
        if site not in known:
            sites = [*known, site] if selection.newcomers == "random" else []
            return random_peers(site, sites, selection.peers, generator)
        if selection.peer_choice == "random":
            return random_peers(site, known, selection.peers, generator)
        if selection.peer_choice == "similar":
            return similar_peers(site, known, self.tracker.similarity, selection.peers)
        return nearest_peers(site, self.tracker.embeddings, selection.peers)

    def _passing(self, site: str, candidates: list[str]) -> list[str]:
        """The candidates that pass the policy, if they are enough to be anonymous."""
        selection = self.peer_options
        if site in self.store.rounds or selection.policy == "gated_validation":
            candidates = passing_peers(
                candidates,
                selection.policy,
                gate=selection.gate,
                scale=selection.gate_scale,
                target=site,
                accuracy=self.tracker.accuracy(),
                similarity=self.tracker.similarities_of(site),
            )
        elif selection.policy != "none":
            candidates = []  # a newcomer has no model to compare its peers with
        return [] if selection.anonymise and len(candidates) < selection.pa_min_peers else candidates

    def payload_for(self, site: str) -> Payload:
        """The global model and the site's peers, if it has any."""
        peers = self._peers[site]
        if self.peer_options.anonymise:
            states = [self.store.get(name) for name in peers]
            peer = {"peer-1": self.store.for_message(anonymised_peer(states))} if states else {}
            return self.payload({GLOBAL: self.sent, **peer})
        parts, values = self._delivery.prepare(site, peers, self.store.rounds, self.store.get)
        return self.payload({GLOBAL: self.sent, **parts}, **values)

    def absorb(self, site: str, result: Result) -> None:
        """Keep the site's model, and add its update to the mean."""
        if result.update is not None:
            self.store.receive(site, self.round_number, apply_update(self.sent, result.update))
        super().absorb(site, result)
        if result.metrics.get(LOST):
            self._delivery.forget(site)
        else:
            self._delivery.confirm(site)

    def missed(self, site: str) -> None:
        """Continue without the site, and send it all its peers again."""
        super().missed(site)
        self.store.discard(site)
        self._delivery.forget(site)

    def close_round(self) -> None:
        """Average the updates, describe the new models, and compare all models."""
        super().close_round()
        for site, share in self.aggregator.shares().items():
            self.store.shorten(site, self.sent, share)  # no peer is further off than the site's part in the mean
        for number, site in enumerate(self.store.commit(max(self.checkpointed, default=0))):
            model = self.store.get(site)
            self.tracker.describe(site, model)
            self._evaluate(site, model, first=number == 0)
        self.tracker.compare()
        rows = [[round(value, 12) for value in row] for row in self.tracker.similarity.tolist()]
        cosines = self.tracker.raw_cosines()
        self.record.event(
            "similarity", round=self.round_number, sites=self.tracker.sites, matrix=rows, raw_cosines=cosines
        )

    def _evaluate(self, site: str, model: State, first: bool) -> None:
        """Compute the validation scores and the embedding of a new model, as far as options need them."""
        selection = self.peer_options
        if selection.needs_validation:
            labels, (_, probabilities) = self.server_images(selection.needs_validation).predictions(model)
            truth = torch.from_numpy(labels)
            weights = median_class_weights(torch.bincount(truth, minlength=probabilities.shape[1]))
            floor = torch.finfo(probabilities.dtype).tiny
            loss = self.problem.kind.loss(probabilities.clamp_min(floor).log().double(), truth, weights)
            accuracy = (probabilities.argmax(dim=1) == truth).double().mean()
            self.tracker.validation[site] = torch.stack([accuracy, loss])
        if selection.peer_choice in NOISE:
            released = selection.peer_choice == "fedmatch_released"
            # The released aggregation overwrites the first update before the embeddings are computed.
            self._network.load_state_dict(self.state if released and first else model)
            logits = Forward(self._network)(self._noise)[0]
            self.tracker.embeddings[site] = logits if released else torch.softmax(logits, dim=0)

    def round_notes(self) -> dict[str, Any]:
        """Each participant's peers, candidates before the policy, and rounds since the peers' last training.

        A validation policy adds the accuracy of every known model on the server's validation images.
        """
        notes = {**super().round_notes(), "peers": self._peers, "candidates": self._candidates, "peer_ages": self._ages}
        if self.peer_options.policy in VALIDATED:
            notes["peer_validation"] = self.tracker.accuracy()
        return notes

    def state_dict(self) -> dict[str, Any]:
        """The global model, and the evaluations of the sites' models."""
        return {**super().state_dict(), "described": self.tracker.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore :meth:`state_dict`."""
        super().load_state_dict(state)
        self.tracker.load_state_dict(state["described"])

    def snapshots(self) -> Mapping[str, tuple[int, State | None]]:
        """Each site's last model."""
        return self.store.snapshots()

    def load_snapshots(self, snapshots: Mapping[str, tuple[int, dict[str, Tensor]]]) -> None:
        """Restore the sites' last models one at a time, and compare them."""
        for site, (round_number, state) in snapshots.items():
            self.store.restore(site, round_number, state)
            self.tracker.describe(site, state)
        self.tracker.compare()
