"""Why nothing leaves: a few fixed sentences for the server, and the details for the site's own audit trail.

An error's text may name a file or hold a value, so no text that is made at run time ever leaves a site that has a gate.
"""

from __future__ import annotations

from enum import StrEnum

from grandrounds.errors import GrandRoundsError


class Reason(StrEnum):
    """What the server is told."""

    POLICY = "the site's privacy policy cannot be used"
    TASK = "the site's privacy policy does not allow this task"
    UNSEEN = "the site's gate has not seen the task, so it lets no answer out"
    FORM = "the answer has a form that the site's gate does not know"
    DENIED = "the site's privacy policy does not allow a part of the answer"
    VALUES = "the answer has values or shapes that the site's gate does not let out"
    BUDGET = "privacy budget spent"
    LEDGER = "the site's privacy ledger cannot be used"
    DATASET = "the site's gate cannot tell which data the answer is about"
    AUDIT = "the site's audit trail cannot be written"
    FAILED = "the site's gate failed"


class Refused(GrandRoundsError):
    """Nothing may leave.

    Args:
        reason: for the server.
        detail: for the site's audit trail only.
    """

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail
