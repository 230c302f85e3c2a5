"""What a server with code of its own asks a site in another order, again and again, or about another attempt."""

from dataclasses import replace

import pytest
from sum_federation import JOB, NAMES, RUN, Federation, MemoryNotes, partners

from grandrounds.errors import MessageError
from grandrounds.privacy.secure_sums.attempt import Rules
from grandrounds.privacy.secure_sums.messages import Phase, SumTask
from grandrounds.privacy.secure_sums.party import MOST_ATTEMPTS, SumParty
from grandrounds.privacy.secure_sums.roster import Roster, RunKeys


class Known:
    """A hospital whose statement is there already."""

    pinned = True

    def __init__(self, join):
        self.partners, self._join = partners(), join

    def join(self, run, job, site, keys):
        return self._join


class Asked:
    """Hospitals that answer by tasks, and the server's view of them."""

    def __init__(self):
        self.federation = Federation()
        self.parties = {
            name: SumParty(name, RUN, JOB, Known(join), Rules(), MemoryNotes(), keys=self.federation.keys[name])
            for name, join in self.federation.joins.items()
        }

    def all(self, phase, **more):
        return {
            name: party.answer(SumTask(phase, **{key: value(name) for key, value in more.items()}))
            for name, party in self.parties.items()
        }

    def roster(self, quantity, answers):
        return Roster(quantity, self.federation.joins, {name: answer.nonce for name, answer in answers.items()})

    def until_signed(self):
        """An attempt as far as the signatures, the nonces of the next one, and what a task repeats."""
        roster = self.roster("update 1", self.all(Phase.JOIN))
        sealed = self.all(Phase.SHARES, roster=lambda _: roster)
        boxes = {name: {other: sealed[other].boxes[name] for other in NAMES if other != name} for name in NAMES}
        for name, party in self.parties.items():
            party.masked(SumTask(Phase.INPUT, roster, boxes=boxes[name]), self.federation.words(name), b"")
        about = {"roster": lambda _: roster, "boxes": boxes.get, "contributors": lambda _: NAMES}
        signed = self.all(Phase.CONTRIBUTORS, **about)
        return roster, signed, {**about, "signatures": lambda _: {name: a.signature for name, a in signed.items()}}


@pytest.fixture
def asked():
    return Asked()


def test_a_site_that_is_asked_to_join_again_and_again_forgets_the_open_attempt(asked):
    roster = asked.roster("update 1", asked.all(Phase.JOIN))
    party = asked.parties["site-1"]
    nonces = {party.answer(SumTask(Phase.JOIN)).nonce for _ in range(MOST_ATTEMPTS)}
    assert len(nonces) == MOST_ATTEMPTS
    with pytest.raises(MessageError, match="no open attempt"):
        party.answer(SumTask(Phase.SHARES, roster))


def test_an_attempt_that_was_opened_is_not_asked_again(asked):
    _, _, about = asked.until_signed()
    asked.all(Phase.UNMASK, **about)
    for phase in (Phase.SHARES, Phase.CONTRIBUTORS, Phase.UNMASK):
        with pytest.raises(MessageError, match="no open attempt"):
            asked.all(phase, **about)


@pytest.mark.parametrize("wrong", ["a nonce of this attempt", "two hospitals less", "a swapped key"])
def test_the_next_roster_is_checked_like_the_first(asked, wrong):
    roster, signed, about = asked.until_signed()
    following = asked.roster("update 2", signed)
    if wrong == "a nonce of this attempt":
        following = replace(following, nonces={**following.nonces, "site-1": roster.nonces["site-1"]})
    elif wrong == "two hospitals less":
        kept = NAMES[2:]
        following = Roster("update 2", *({n: of[n] for n in kept} for of in (following.joins, following.nonces)))
    else:
        swapped = replace(following.joins["site-2"], masks=RunKeys().public[1])
        following = replace(following, joins={**following.joins, "site-2": swapped})
    party = asked.parties["site-1"]
    task = SumTask(Phase.UNMASK, following=following, **{key: value("site-1") for key, value in about.items()})
    with pytest.raises(MessageError, match=r"site-[12]"):
        party.answer(task)


def test_a_roster_whose_quantity_has_changed_is_of_no_attempt(asked):
    roster, _, about = asked.until_signed()
    with pytest.raises(MessageError, match="no open attempt at sums"):
        asked.all(Phase.UNMASK, **{**about, "roster": lambda _: replace(roster, quantity="sums")})
