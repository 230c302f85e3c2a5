"""The sites of a run: which are connected and available, which are mandatory, and which train in a round.

The operator of the server may name sites that must be connected at the start of every job, in the server's
``local/roster.json``: ``{"mandatory_sites": ["hospital-a"]}``. A job can add sites and cannot waive these.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from nvflare.apis.fl_context import FLContext
from nvflare.apis.signal import Signal

from grandrounds.errors import ConfigurationError, GrandRoundsError
from grandrounds.files import read_json_object, require_object, write_json
from grandrounds.ordering import natural_sorted
from grandrounds.protocol.messages import LEDGER_HEAD, Payload, Registration, Result
from grandrounds.protocol.paths import STATES
from grandrounds.protocol.refusal import Refusal
from grandrounds.seeding import numpy_generator

MAX_PAUSE = 8


class SiteHealth:
    """Counts the rounds in a row that a site has missed, and pauses it from the second on: one fault costs one round.

    FLARE keeps listing a site that has gone away, so a sampler that trusts the list waits for it in every round: a site that
    stays silent is paused for 1, 2, 4, at most ``MAX_PAUSE`` rounds. One that has replied, if only that its task failed, is
    not waited for: it is paused for one round, and may be mended in the next.
    """

    def __init__(self) -> None:
        self._missed: dict[str, int] = {}
        self._back_at: dict[str, int] = {}

    def answered(self, site: str) -> None:
        """The site gave a valid answer: forget its misses."""
        self._missed.pop(site, None)
        self._back_at.pop(site, None)

    def missed(self, site: str, round_number: int, silent: bool = True) -> None:
        """The site gave none in this round; ``silent``: it has not even replied."""
        count = self._missed.get(site, 0) + 1
        self._missed[site] = count if silent else min(count, 2)
        self._back_at[site] = round_number + 1 + min((1 << self._missed[site]) >> 2, MAX_PAUSE)

    def paused(self, site: str, round_number: int) -> bool:
        """Whether the site sits this round out."""
        return round_number < self._back_at.get(site, 0)

    def pauses(self, round_number: int) -> dict[str, int]:
        """The sites that are paused in this round, each with the round in which it takes part again."""
        return {site: self._back_at[site] for site in natural_sorted(self._back_at) if self.paused(site, round_number)}

    def available_sites(self, sites: Iterable[str], round_number: int, needed: int) -> list[str]:
        """The sites that are not paused; if they are fewer than ``needed``, those whose pause ends soonest join them."""
        ordered = sorted(natural_sorted(sites), key=lambda site: max(self._back_at.get(site, 0) - round_number, 0))
        active = sum(not self.paused(site, round_number) for site in ordered)
        return natural_sorted(ordered[: max(active, needed)])

    def state_dict(self) -> dict[str, dict[str, int]]:
        """Plain values for a checkpoint."""
        return {"missed": dict(self._missed), "back_at": dict(self._back_at)}

    def load_state_dict(self, state: dict[str, dict[str, int]]) -> None:
        """Take over the values of a checkpoint."""
        self._missed, self._back_at = dict(state["missed"]), dict(state["back_at"])


@dataclass
class SiteRegistry:
    """What the server knows of sites.

    Attributes:
        registered: what each site has registered.
        refused: sites whose registration was refused in this start of the run, with the reason; another start asks them
            again.
        refusals: what sites have refused and not answered since, in this start of the run.
        health: which sites have missed rounds.
    """

    registered: dict[str, Registration] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    refusals: dict[str, Refusal] = field(default_factory=dict)
    health: SiteHealth = field(default_factory=SiteHealth)

    def sort(self) -> None:
        """Put the registered sites into canonical order."""
        ordered = {site: self.registered[site] for site in natural_sorted(self.registered)}
        self.registered.clear()
        self.registered.update(ordered)

    def state_dict(self) -> dict[str, Any]:
        """Plain values for a checkpoint."""
        registered = {site: registration.to_dict() for site, registration in self.registered.items()}
        return {"registered": registered, "health": self.health.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the values of a checkpoint."""
        self.registered = {site: Registration(**values) for site, values in state["registered"].items()}
        self.health.load_state_dict(state["health"])


def sample_sites(sites: Iterable[str], count: int | None, seed: int, round_number: int) -> list[str]:
    """Draw the round's participants uniformly without replacement (FedPerl: 3 of 10).

    Args:
        sites: the candidates, in any order.
        count: how many; None or more than there are means all.
        seed: the run's seed.
        round_number: counts from 1.

    Returns:
        The drawn sites in canonical order.

    Example:
        >>> sample_sites(["site-2", "site-1"], None, seed=1, round_number=1)
        ['site-1', 'site-2']
    """
    ordered = natural_sorted(sites)
    if count is None or count >= len(ordered):
        return ordered
    drawn = numpy_generator(seed, "sites", round_number).choice(len(ordered), size=count, replace=False)
    return [ordered[index] for index in sorted(drawn)]


def await_sites(
    connected: Callable[[], Sequence[str]],
    needed: int,
    timeout: float,
    abort_signal: Signal,
    pause: float = 0.5,
    mandatory: Collection[str] = (),
) -> bool:
    """Wait until ``needed`` sites are connected, the mandatory ones among them; look every ``pause`` seconds.

    Returns:
        Whether they are connected; False when the run was aborted.

    Raises:
        GrandRoundsError: after the timeout, naming the sites that are connected or, first, those that must be and are not.
    """
    deadline = time.monotonic() + timeout
    while True:
        present = connected()
        missing = [site for site in mandatory if site not in present]
        if len(present) >= needed and not missing:
            return True
        if abort_signal.triggered:
            return False
        if time.monotonic() >= deadline:
            names = ", ".join(present) or "none"
            if missing:
                raise GrandRoundsError(
                    f"{', '.join(missing)} is mandatory and not connected after {timeout:g} s (connected: {names}); "
                    "ask its administrator to run grandrounds doctor --kit"
                )
            raise GrandRoundsError(
                f"{len(present)} sites are connected after {timeout:g} s, min_sites is {needed}: "
                f"start more sites or lower min_sites (connected: {names})"
            )
        time.sleep(min(pause, timeout))


ROSTER = "roster.json"
MANDATORY = "mandatory_sites"


def require_names(names: Any, where: str) -> tuple[str, ...]:
    """Check a list of sites' names.

    Raises:
        ConfigurationError: naming it, if it is not a list of different names.
    """
    listed = isinstance(names, list | tuple) and all(isinstance(name, str) and name for name in names)
    if not listed or len(set(names)) < len(names):
        raise ConfigurationError(f"{where} must be a list of different names of sites, got {names!r}")
    return tuple(names)


def servers_roster(fl_ctx: FLContext) -> tuple[str, ...]:
    """The sites that the server asks for in every job; none if it has no ``local/roster.json``.

    Raises:
        ConfigurationError: if the file is not as it must be; it is named.
    """
    return read_roster(Path(fl_ctx.get_engine().get_workspace().get_site_config_dir()) / ROSTER)


def read_roster(path: Path) -> tuple[str, ...]:
    """Read a ``roster.json``.

    Raises:
        ConfigurationError: if it is damaged, or has anything but mandatory sites.
    """
    if not path.is_file():
        return ()
    content = require_object(read_json_object(path), str(path), [MANDATORY])
    return require_names(content[MANDATORY], f"{path}: {MANDATORY}")


def joined_sites(*rosters: Sequence[str]) -> tuple[str, ...]:
    """All names, each once, in the order in which they come.

    Example:
        >>> joined_sites(("b", "a"), ("a", "c"))
        ('b', 'a', 'c')
    """
    return tuple(dict.fromkeys(name for roster in rosters for name in roster))


HEADS = "ledger_heads"
"""Folder with a file for each site, in a server's folder of states."""


class LedgerPins:
    """The head of each site, and how often its data sets have changed, in a file in a folder that all runs share.

    Only the site can say whether its ledger has the line of a head. The server returns to each site its own, so that a
    ledger that was set back, by whatever copy, is found out by the next task. A site that has declared its
    loss has a line that names the head (:mod:`~grandrounds.privacy.ledger.lines`).
    """

    def __init__(self, fl_ctx: FLContext) -> None:
        # Of the workspace, as the sites' ledgers are: $GRANDROUNDS_STATE does not move them.
        self._folder = Path(str(fl_ctx.get_engine().get_workspace().get_root_dir())) / STATES / HEADS

    def pinned(self, site: str, payload: Payload) -> Payload:
        """A task with the head of the site's ledger, if one is known.

        Raises:
            ConfigurationError: if the site's file is damaged.
        """
        path = self._path(site)
        if not path.is_file():
            return payload
        return replace(payload, values={**payload.values, LEDGER_HEAD: read_json_object(path)["head"]})

    def note(self, site: str, dataset: str, answer: Result) -> bool:
        """Keep what an answer says of its site's ledger; it is on disk when this returns. Without a ledger nothing is kept.

        Returns:
            Whether the images of the data set have changed under the same manifest since the last answer, of any run.

        Raises:
            ConfigurationError: if the site's file is damaged.
        """
        if not answer.ledger_head:
            return False
        path = self._path(site)
        changes = read_json_object(path).get("changes", {}) if path.is_file() else {}
        known = changes.get(dataset, answer.data_changes)
        noted = {"site": site, "head": answer.ledger_head, "changes": {**changes, dataset: answer.data_changes}}
        write_json(path, noted)
        return bool(answer.data_changes > known)

    def _path(self, site: str) -> Path:
        return self._folder / f"{quote(site, safe='')}.json"
