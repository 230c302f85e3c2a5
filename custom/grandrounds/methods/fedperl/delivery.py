"""Which peers' models a site already has, so that an unchanged one is not sent again.

Without anonymisation a site gets the peers' models themselves. With few participants per round many have not changed since
the site was last sent them. Server and site keep the same account: the server says which models the site is to have, and the
site keeps exactly those. What a site has not answered to counts as not there.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Mapping, Sequence

from torch import Tensor

from grandrounds.errors import MessageError
from grandrounds.federation.context import StateCache
from grandrounds.federation.messages import Payload, State

PEERS, KEEP = "peers", "keep"


class PeerDelivery:
    """The server's account of the peers' models at each site.

    A model's key is a pseudonym and the round it is from. Pseudonyms are drawn anew by every process of the server: they
    tell a site nothing, and after a restart everything is sent again.
    """

    def __init__(self) -> None:
        self._pseudonym: dict[str, str] = defaultdict(lambda: secrets.token_hex(8))
        self._held: dict[str, set[str]] = {}
        self._expected: dict[str, set[str]] = {}

    def prepare(
        self, site: str, peers: Sequence[str], models: Mapping[str, tuple[int, State]]
    ) -> tuple[dict[str, State], dict[str, list[str]]]:
        """What to send to a site.

        Args:
            site: who gets it.
            peers: the chosen peers, best first.
            models: round and model of every site that has trained.

        Returns:
            The models that must travel, as parts ``peer-1``, ``peer-2``, ... by rank, and the values ``peers`` (all keys
            by rank) and ``keep`` (the keys that the site is to have afterwards).
        """
        current = {self._key(name, round_number) for name, (round_number, _) in models.items()}
        wanted = [self._key(peer, models[peer][0]) for peer in peers]
        held = self._held.get(site, set()) & current
        parts = {
            f"peer-{rank}": models[peer][1]
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

    def _key(self, site: str, round_number: int) -> str:
        return f"{self._pseudonym[site]}-{round_number}"


def received_peers(payload: Payload, cache: StateCache) -> dict[str, Mapping[str, Tensor]]:
    """The peers of a task, by part name in the order of their rank, from the message or from what the site has.

    Args:
        payload: the task; with an anonymised peer, or none, it has no keys, and the parts are all there is.
        cache: afterwards it has what the server says it should have.

    Raises:
        MessageError: if a peer is neither in the message nor in the cache; the server will then send it again.
    """
    keys = payload.values.get(PEERS)
    if keys is None:
        return {name: payload.parts[name] for name in sorted(payload.parts) if name.startswith("peer-")}
    peers: dict[str, Mapping[str, Tensor]] = {}
    for rank, key in enumerate(keys, 1):
        name = f"peer-{rank}"
        if name in payload.parts:
            cache.put(key, payload.parts[name])
            peers[name] = payload.parts[name]
        elif (state := cache.get(key)) is not None:
            peers[name] = state
        else:
            raise MessageError(f"peer {rank} was not sent, and this site does not have it any more")
    cache.keep_only(payload.values[KEEP])
    return peers
