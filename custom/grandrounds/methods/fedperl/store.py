"""Where the server keeps the sites' last models: in memory up to a limit, beyond it in files.

Any of them may be a peer in the next round. The files are those that a checkpoint needs anyway, written as soon as a model
is in; what is needed of them is mapped into memory and let go again. So the number of sites is bounded by the disk.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from grandrounds.federation.server.tensor_files import TensorFileStore, mapped_copy
from grandrounds.ordering import natural_sorted
from grandrounds.protocol.messages import State, tensor_bytes


class ModelStore:
    """The model of each site at the end of its last training.

    A round's models are taken in one by one, and take the places of older ones when the round is closed.

    Args:
        files: of the run's checkpoints.
        limit: bytes of models in memory.
    """

    def __init__(self, files: TensorFileStore, limit: int) -> None:
        self.rounds: dict[str, int] = {}
        """Round of each site's last training."""
        self._files = files
        self._free = limit
        self._lent = 0
        self._states: dict[str, State] = {}
        self._arrived: dict[str, tuple[int, State | None]] = {}

    def get(self, site: str) -> State:
        """A site's model; views of its file if it is not in memory."""
        return self._states[site] if site in self._states else self._files.mapped(site, self.rounds[site])

    def receive(self, site: str, round_number: int, state: State) -> None:
        """Take in what a site has trained in a round, without effect until :meth:`settle`."""
        fits = self._take(state)
        if not fits:
            self._files.save(site, round_number, state)
        self._arrived[site] = (round_number, state if fits else None)

    def give_up(self, site: str) -> None:
        """Forget what was received of a site, if anything was."""
        round_number, state = self._arrived.pop(site, (0, None))
        if state is not None:
            self._free += _size(state)
        elif round_number:
            self._files.discard(site, round_number)

    def settle(self, saved: int) -> list[str]:
        """Let what was received take the places of older models.

        Args:
            saved: round of the last checkpoint. What is in files and newer than that no checkpoint refers to.

        Returns:
            The sites that have a new model, in natural order.
        """
        for site, (round_number, state) in self._arrived.items():
            if site in self._states:
                self._free += _size(self._states.pop(site))
            elif self.rounds.get(site, 0) > saved:
                self._files.discard(site, self.rounds[site])
            self._place(site, round_number, state)
        changed = natural_sorted(self._arrived)
        self._arrived, self._lent = {}, 0
        return changed

    def restore(self, site: str, round_number: int, state: State) -> None:
        """Take over a model of a checkpoint, whose file is there."""
        self._place(site, round_number, state if self._take(state) else None)

    def for_message(self, state: dict[str, Tensor]) -> State:
        """A state that was made for this round's messages: itself, or a copy in a file if there is no room for it.

        All messages of a round are made before the first is sent.
        """
        size = _size(state)
        if size > self._free - self._lent:
            return mapped_copy(state)
        self._lent += size
        return state

    def snapshots(self) -> Mapping[str, tuple[int, State | None]]:
        """Round and model of each site, for a checkpoint; None for a model that is in its file."""
        return {site: (number, self._states.get(site)) for site, number in self.rounds.items()}

    def _take(self, state: State) -> bool:
        size = _size(state)
        if size > self._free - self._lent:
            return False
        self._free -= size
        return True

    def _place(self, site: str, round_number: int, state: State | None) -> None:
        self.rounds[site] = round_number
        if state is not None:
            self._states[site] = state


def _size(state: State) -> int:
    return tensor_bytes({"": state})[""]
