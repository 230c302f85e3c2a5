"""Which peers' models a site already has, so that an unchanged one is not sent again.

Without anonymisation a site gets the peers' models themselves. With few participants per round many have not changed since
the site was last sent them. Server and site keep the same account: the server says which models the site is to have, and the
site keeps exactly those, until the run ends. What a site has not answered to counts as not there.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from grandrounds.federation.site.context import StateCache
from grandrounds.protocol.messages import Payload, State

PEERS, KEEP, LOST = "peers", "keep", "peers_lost"


class PeerDelivery:
    """The server's account of the peers' models at each site.

    A model's key is a random word of its own for every receiver, peer and round: two models of one peer cannot be told from
    models of two peers by it, and two sites cannot match their peers. Keys are drawn anew by every process of the server, so
    after a restart everything is sent again.
    """

    def __init__(self) -> None:
        self._keys: dict[tuple[str, str, int], str] = defaultdict(lambda: secrets.token_hex(8))
        self._held: dict[str, set[str]] = {}
        self._expected: dict[str, set[str]] = {}

    def prepare(
        self, site: str, peers: Sequence[str], rounds: Mapping[str, int], model_of: Callable[[str], State]
    ) -> tuple[dict[str, State], dict[str, list[str]]]:
        """What to send to a site.

        Args:
            site: who gets it.
            peers: the chosen peers, best first.
            rounds: of the last training of every site that has trained.
            model_of: gives the model of a site; asked for those that must travel.

        Returns:
            The models that must travel, as parts ``peer-1``, ``peer-2``, ... by rank, and the values ``peers`` (all keys
            by rank) and ``keep`` (the keys that the site is to have afterwards).
        """
        current = {self._keys[site, name, round_number] for name, round_number in rounds.items()}
        wanted = [self._keys[site, peer, rounds[peer]] for peer in peers]
        held = self._held.get(site, set()) & current
        parts = {
            f"peer-{rank}": model_of(peer)
            for rank, (peer, key) in enumerate(zip(peers, wanted, strict=True), 1)
            if key not in held
        }
        self._expected[site] = held | set(wanted)
        return parts, {PEERS: wanted, KEEP: sorted(self._expected[site])}

    def confirm(self, site: str) -> None:
        """The site has answered: it has what it was sent."""
        self._held[site] = self._expected.get(site, set())

    def forget(self, site: str) -> None:
        """The site has not answered: nothing is known of what it has."""
        self._held.pop(site, None)


def received_peers(payload: Payload, cache: StateCache) -> tuple[dict[str, State], int]:
    """The peers of a task, from the message or from what the site has.

    Args:
        payload: the task; with an anonymised peer, or none, it has no keys, and the parts are all there is.
        cache: afterwards it has what the server says it should have.

    Returns:
        The peers by part name, in the order of their rank, and how many are neither in the message nor in the cache: the
        round goes on without those, and the server sends them again when it hears of it.
    """
    keys = payload.values.get(PEERS)
    if keys is None:
        return {name: payload.parts[name] for name in sorted(payload.parts) if name.startswith("peer-")}, 0
    peers: dict[str, State] = {}
    for rank, key in enumerate(keys, 1):
        name = f"peer-{rank}"
        state = payload.parts[name] if name in payload.parts else cache.get(key)
        if name in payload.parts:
            cache.put(key, payload.parts[name])
        if state is not None:
            peers[name] = state
    cache.keep_only(payload.values.get(KEEP, keys))
    return peers, len(keys) - len(peers)
