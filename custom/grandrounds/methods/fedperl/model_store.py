"""The sites' last models at the server, and their delivery to other sites as peers.

The server keeps models in memory up to a limit and the others as memory-mapped files of its checkpoints, so that the number
of sites is bounded by the disk. Without anonymisation a site gets the peers' models themselves, and keeps them in a cache
until the run ends: a model that a site already holds is not sent again.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from grandrounds.federation.checkpoints import TensorFileStore, mapped_copy
from grandrounds.federation.site.context import StateCache
from grandrounds.ordering import natural_sorted
from grandrounds.protocol.messages import Payload, State, tensor_bytes

PEERS, KEEP, LOST = "peers", "keep", "peers_lost"


class ModelStore:
    """Each site's model at the end of its last training. Models received in a round replace older ones at its end.

    Args:
        files: of the run's checkpoints.
        limit: bytes of models in memory.
    """

    def __init__(self, files: TensorFileStore, limit: int) -> None:
        self.rounds: dict[str, int] = {}
        """The round of each site's last training."""
        self._files = files
        self._free = limit
        self._lent = 0
        self._states: dict[str, State] = {}
        self._received: dict[str, tuple[int, State | None]] = {}

    def get(self, site: str) -> State:
        """A site's model; memory-mapped if it is in a file."""
        return self._states[site] if site in self._states else self._files.mapped(site, self.rounds[site])

    def receive(self, site: str, round_number: int, state: State) -> None:
        """Add a site's model of this round; it has no effect until :meth:`commit`."""
        fits = self._allocate(state)
        if not fits:
            self._files.save(site, round_number, state)
        self._received[site] = (round_number, state if fits else None)

    def shorten(self, site: str, start: State, share: float) -> None:
        """Keep only a share, in [0, 1], of the update that has led a site from ``start`` to its model of this round."""
        round_number, state = self._received[site]
        model = self._files.mapped(site, round_number) if state is None else state
        shortened = {
            name: start[name].lerp(value, share) if value.is_floating_point() else value
            for name, value in model.items()
        }
        self.discard(site)
        self.receive(site, round_number, shortened)

    def discard(self, site: str) -> None:
        """Drop the model received from a site in this round, if there is one."""
        round_number, state = self._received.pop(site, (0, None))
        if state is not None:
            self._free += _size(state)
        elif round_number:
            self._files.discard(site, round_number)

    def commit(self, saved: int) -> list[str]:
        """Replace older models by those received in this round.

        Args:
            saved: round of the last checkpoint; files of later rounds are deleted with their models.

        Returns:
            The sites with a new model, in natural order.
        """
        for site, (round_number, state) in self._received.items():
            if site in self._states:
                self._free += _size(self._states.pop(site))
            elif self.rounds.get(site, 0) > saved:
                self._files.discard(site, self.rounds[site])
            self._place(site, round_number, state)
        changed = natural_sorted(self._received)
        self._received, self._lent = {}, 0
        return changed

    def restore(self, site: str, round_number: int, state: State) -> None:
        """Add a model of a checkpoint, whose file exists."""
        self._place(site, round_number, state if self._allocate(state) else None)

    def for_message(self, state: dict[str, Tensor]) -> State:
        """A state made for this round's messages, or a memory-mapped copy if it exceeds the limit.

        All messages of a round are made before the first is sent.
        """
        size = _size(state)
        if size > self._free - self._lent:
            return mapped_copy(state)
        self._lent += size
        return state

    def snapshots(self) -> Mapping[str, tuple[int, State | None]]:
        """Round and model of each site for a checkpoint; None for a model that is in its file."""
        return {site: (number, self._states.get(site)) for site, number in self.rounds.items()}

    def _allocate(self, state: State) -> bool:
        size = _size(state)
        if size > self._free - self._lent:
            return False
        self._free -= size
        return True

    def _place(self, site: str, round_number: int, state: State | None) -> None:
        self.rounds[site] = round_number
        if state is not None:
            self._states[site] = state


class PeerDelivery:
    """The server's record of the peers' models that each site holds.

    A model has a random key for every receiver, peer and round, so that a site cannot link two models of one peer, and two
    sites cannot match their peers. Keys do not survive a restart of the server, which sends everything again.
    """

    def __init__(self) -> None:
        self._keys: dict[tuple[str, str, int], str] = defaultdict(lambda: secrets.token_hex(8))
        self._held: dict[str, set[str]] = {}
        self._expected: dict[str, set[str]] = {}

    def prepare(
        self, site: str, peers: Sequence[str], rounds: Mapping[str, int], model_of: Callable[[str], State]
    ) -> tuple[dict[str, State], dict[str, list[str]]]:
        """Prepare a site's message.

        Args:
            site: the receiver.
            peers: its selected peers, best first.
            rounds: of the last training of every site that has trained.
            model_of: returns the model of a site.

        Returns:
            The models to send, as parts ``peer-1``, ``peer-2``, ... by rank, and the values ``peers`` (all keys by rank) and
            ``keep`` (the keys that the site holds afterwards).
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
        """The site has answered: it holds the models that it was sent."""
        self._held[site] = self._expected.get(site, set())

    def forget(self, site: str) -> None:
        """The site has not answered: it may hold nothing."""
        self._held.pop(site, None)


def received_peers(payload: Payload, cache: StateCache) -> tuple[dict[str, State], int]:
    """The peers of a task, from the message or from the site's cache.

    Args:
        payload: the task; without keys (an anonymised peer, or no peers) its parts are all peers.
        cache: afterwards it holds the models that the server lists as ``keep``.

    Returns:
        The peers by part name, in order of rank, and the number of peers that are neither in the message nor in the cache.
        The round continues without these, and the server sends them again once the site reports the number.
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


def _size(state: State) -> int:
    return tensor_bytes({"": state})[""]
