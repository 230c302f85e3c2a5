"""What server and sites say to each other about a sum, as plain JSON values and back."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grandrounds.checks import reraised_as
from grandrounds.errors import MessageError
from grandrounds.privacy.secure_sums.attempt import Rules, Unmasking
from grandrounds.privacy.secure_sums.roster import Join, Roster

MESSAGE = "message"
"""The tensor of an answer about a sum: its JSON as bytes."""
MOST_BYTES = 1 << 22
"""Of such an answer."""
WRONG = (KeyError, TypeError, ValueError, AttributeError)
KEYS = ("channel", "masks", "signing", "certificate", "signature")


class Phase(StrEnum):
    """What a task asks of a site about a sum."""

    JOIN = "join"
    SHARES = "shares"
    INPUT = "input"
    CONTRIBUTORS = "contributors"
    UNMASK = "unmask"


@dataclass(frozen=True)
class SumTask:
    """A phase of an attempt, for one site. Later phases repeat what earlier ones said.

    Attributes:
        phase: what is asked.
        roster: of the attempt; None when a site joins.
        weighted: whether each site adds its numbers times its images, and these images.
        boxes: the sealed share that each partner has made for this site, from phase ``input`` on.
        contributors: who is in the sum, from phase ``contributors`` on.
        signatures: of these contributors, in phase ``unmask``.
        subject: the digest of what the sites were asked, from phase ``contributors`` on; a site with a gate knows its own.
        following: the roster of the next attempt, if it is known by then; its shares come with the answer.
    """

    phase: Phase
    roster: Roster | None = None
    weighted: bool = False
    boxes: Mapping[str, bytes] = field(default_factory=dict)
    contributors: tuple[str, ...] = ()
    signatures: Mapping[str, bytes] = field(default_factory=dict)
    subject: bytes = b""
    following: Roster | None = None

    @property
    def known_roster(self) -> Roster:
        """The roster.

        Raises:
            MessageError: if the task has none.
        """
        if self.roster is None:
            raise MessageError(f"the task about a sum ({self.phase}) has no roster")
        return self.roster

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "phase": self.phase.value,
            "roster": None if self.roster is None else _roster_json(self.roster),
            "weighted": self.weighted,
            "boxes": _texts(self.boxes),
            "contributors": list(self.contributors),
            "signatures": _texts(self.signatures),
            "subject": _text(self.subject),
            "following": None if self.following is None else _roster_json(self.following),
        }

    @classmethod
    def from_json(cls, content: Any) -> SumTask:
        """Read plain values.

        Raises:
            MessageError: if they have another form.
        """
        with reraised_as(MessageError, *WRONG, where="a task about a sum has another form"):
            return cls(
                Phase(content["phase"]),
                _roster(content["roster"]),
                content["weighted"] is True,
                _bytes(content["boxes"]),
                tuple(map(str, content["contributors"])),
                _bytes(content["signatures"]),
                _byte(content["subject"]),
                _roster(content["following"]),
            )


@dataclass(frozen=True)
class SumAnswer:
    """What a site says about a sum, beside its masked numbers.

    Attributes:
        nonce: of its next attempt; empty if the answer has none.
        join: its statement, when it joins.
        kinds: the kinds of releases that its gate lets out masked only.
        rules: of its policy.
        pinned: whether its policy pins partners.
        boxes: a sealed share for each partner.
        signature: of the contributors.
        unmasking: what opens the sum.
    """

    nonce: bytes = b""
    join: Join | None = None
    kinds: tuple[str, ...] = ()
    rules: Rules = field(default_factory=Rules)
    pinned: bool = False
    boxes: Mapping[str, bytes] = field(default_factory=dict)
    signature: bytes = b""
    unmasking: Unmasking = field(default_factory=lambda: Unmasking({}, {}))

    def to_tensors(self) -> dict[str, Tensor]:
        """The answer as the tensor of a release."""
        content = {
            "nonce": _text(self.nonce),
            "join": None if self.join is None else _join_json(self.join),
            "kinds": list(self.kinds),
            "rules": [self.rules.minimum_sites, self.rules.colluding],
            "pinned": self.pinned,
            "boxes": _texts(self.boxes),
            "signature": _text(self.signature),
            "shares": _texts(self.unmasking.shares),
            "seeds": _texts(self.unmasking.seeds),
        }
        return {MESSAGE: torch.from_numpy(np.frombuffer(json.dumps(content).encode(), np.uint8).copy())}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> SumAnswer:
        """Read the tensor of a release.

        Raises:
            MessageError: if it has another form.
        """
        value = tensors.get(MESSAGE)
        if value is None or value.dtype != torch.uint8 or value.dim() != 1 or len(value) > MOST_BYTES:
            raise MessageError("an answer about a sum has another form")
        with reraised_as(MessageError, *WRONG, where="an answer about a sum has another form"):
            content = json.loads(value.numpy().tobytes())
            minimum, colluding = map(int, content["rules"])
            return cls(
                _byte(content["nonce"]),
                None if content["join"] is None else _join(content["join"]),
                tuple(map(str, content["kinds"])),
                Rules(minimum, colluding),
                content["pinned"] is True,
                _bytes(content["boxes"]),
                _byte(content["signature"]),
                Unmasking(_bytes(content["shares"]), _bytes(content["seeds"])),
            )


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _byte(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _texts(values: Mapping[str, bytes]) -> dict[str, str]:
    return {name: _text(value) for name, value in values.items()}


def _bytes(texts: Mapping[str, str]) -> dict[str, bytes]:
    return {str(name): _byte(text) for name, text in texts.items()}


def _join_json(join: Join) -> dict[str, str]:
    return {"run": join.run, "job": join.job, "site": join.site} | _texts({key: getattr(join, key) for key in KEYS})


def _join(content: Mapping[str, str]) -> Join:
    return Join(str(content["run"]), str(content["job"]), str(content["site"]), *(_byte(content[key]) for key in KEYS))


def _roster_json(roster: Roster) -> dict[str, Any]:
    joins = {name: _join_json(join) for name, join in roster.joins.items()}
    return {"quantity": roster.quantity, "joins": joins, "nonces": _texts(roster.nonces)}


def _roster(content: Mapping[str, Any] | None) -> Roster | None:
    if content is None:
        return None
    joins = {str(name): _join(join) for name, join in content["joins"].items()}
    return Roster(str(content["quantity"]), joins, _bytes(content["nonces"]))
