"""FedPerl on the server: who resembles whom, and which peers a site gets."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from grandrounds.errors import ConfigurationError
from grandrounds.federation.aggregation import apply_update
from grandrounds.federation.averaging import AveragingController
from grandrounds.federation.messages import GLOBAL, Payload, Result, State
from grandrounds.methods.fedperl.peers import anonymised_peer, in_warm_up, similar_peers
from grandrounds.methods.fedperl.similarity import LayerSelection, Normalisation, layer_moments, similarity_matrix
from grandrounds.models.registry import build_model
from grandrounds.ordering import natural_sorted


class FedPerlController(AveragingController):
    """Federated averaging in which each site also gets the models most like its own (Bdair et al., MELBA 2022).

    After each round the server keeps what every participant has trained and compares all it has kept. In the next round a
    site gets its nearest peers as they were at the end of their last training; all choices of a round are made from the
    state at its start, so they do not depend on who answers first.

    Args:
        peers: T, how many of the nearest peers a site gets; 0 is SSFL.
        anonymise: send the average of the peers' parameters (Eq. 6) instead of each.
        pa_min_peers: fewest hospitals behind an anonymised peer; with fewer none is sent. Of one alone the average is its
            model, which is anonymous to nobody (the paper does not exclude that: 1).
        warm_up: rounds without peers.
        features: which entries of a model describe it.
        feature_scaling: ``minmax`` scales each feature over the sites (authors' code), ``none`` does not (text). Without
            scaling, models that start from the same weights have cosines of almost 1.
        options: those of :class:`~grandrounds.federation.averaging.AveragingController`.
    """

    def __init__(
        self,
        *,
        peers: int = 2,
        anonymise: bool = True,
        pa_min_peers: int = 2,
        warm_up: int = 10,
        features: LayerSelection = "parameters_and_buffers",
        feature_scaling: Normalisation = "minmax",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        for name, value in (("peers", peers), ("warm_up", warm_up), ("pa_min_peers", pa_min_peers)):
            if not isinstance(value, int) or value < 0:
                raise ConfigurationError(f"{name} must be an integer of at least 0, got {value!r}")
        if features not in ("parameters_and_buffers", "parameters", "weights"):
            raise ConfigurationError(
                f"features must be parameters_and_buffers, parameters or weights, got {features!r}"
            )
        if feature_scaling not in ("minmax", "none"):
            raise ConfigurationError(f"feature_scaling must be minmax or none, got {feature_scaling!r}")
        self.peers = peers
        self.anonymise = anonymise
        self.pa_min_peers = pa_min_peers
        self.warm_up = warm_up
        self.features = features
        self.feature_scaling = feature_scaling
        self._trained: dict[str, tuple[int, State]] = {}
        self._moments: dict[str, Tensor] = {}
        self._similarity = torch.zeros(0, 0, dtype=torch.float64)
        self._parameters: frozenset[str] = frozenset()

    def start(self) -> None:
        """Build the initial model and note which entries are parameters."""
        super().start()
        network = build_model(self.problem.model_spec(pretrained=False), self.seed)
        self._parameters = frozenset(name for name, _ in network.named_parameters())

    def open_round(self, sites: list[str]) -> None:
        """Expect updates from these sites and choose peers for them."""
        super().open_round(sites)
        self._updates: dict[str, State] = {}
        self._chosen = {site: self._peers_of(site) for site in sites}
        self._ages = {
            site: [self.round_number - self._trained[peer][0] for peer in peers] for site, peers in self._chosen.items()
        }

    def _peers_of(self, site: str) -> list[str]:
        if in_warm_up(self.round_number, self.warm_up):
            return []
        nearest = similar_peers(site, natural_sorted(self._moments), self._similarity, self.peers)
        return [] if self.anonymise and len(nearest) < self.pa_min_peers else nearest

    def payload_for(self, site: str) -> Payload:
        """The global model and the site's peers, if it has any yet."""
        states = [self._trained[name][1] for name in self._chosen[site]]
        if states and self.anonymise:
            states = [anonymised_peer(states)]
        return self.payload({GLOBAL: self.state, **{f"peer-{number}": state for number, state in enumerate(states, 1)}})

    def absorb(self, site: str, result: Result) -> None:
        """Add the update to the mean and keep it for comparison."""
        super().absorb(site, result)
        if result.update is not None:
            self._updates[site] = result.update

    def close_round(self) -> None:
        """Average, keep what each participant has trained, and compare all that have trained."""
        before = self.state
        super().close_round()
        for site, update in self._updates.items():
            trained = apply_update(before, update)
            self._trained[site] = (self.round_number, trained)
            self._moments[site] = layer_moments(trained, self.features, self._parameters)
        self._compare()
        rows = [[round(value, 6) for value in row] for row in self._similarity.tolist()]
        self.record.event("similarity", round=self.round_number, sites=natural_sorted(self._moments), matrix=rows)

    def round_notes(self) -> dict[str, Any]:
        """The peers of each participant, and for how many rounds they have not trained."""
        return {"peers": self._chosen, "peer_ages": self._ages}

    def fingerprint(self) -> dict[str, Any]:
        """What shapes the choice of peers, beside the architecture."""
        return {
            **super().fingerprint(),
            "peers": self.peers,
            "anonymise": self.anonymise,
            "pa_min_peers": self.pa_min_peers,
            "warm_up": self.warm_up,
            "features": self.features,
            "feature_scaling": self.feature_scaling,
        }

    def snapshots(self) -> dict[str, tuple[int, State]]:
        """What each site has trained last."""
        return dict(self._trained)

    def load_snapshots(self, snapshots: dict[str, tuple[int, dict[str, Tensor]]]) -> None:
        """Take over what each site has trained last, and compare."""
        self._trained = dict(snapshots)
        self._moments = {
            site: layer_moments(state, self.features, self._parameters) for site, (_, state) in snapshots.items()
        }
        self._compare()

    def _compare(self) -> None:
        if self._moments:
            rows = torch.stack([self._moments[site] for site in natural_sorted(self._moments)])
            self._similarity = similarity_matrix(rows, self.feature_scaling)
