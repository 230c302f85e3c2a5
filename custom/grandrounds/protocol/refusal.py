"""Why a site refuses a job or a task, as it travels to the server, the researcher and the site's own log.

A site with a gate sends fixed sentences, and names of releases that the job declares, but no text made from its data.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from grandrounds.errors import Fault, GrandRoundsError

PLACE = "local/privacy.json"
FINAL = "refused for good: "
_LINE = f"; its hospital would add to {PLACE}: "
_FORM = re.compile(rf"{FINAL}(?P<cause>.+?)(?: \[(?P<rule>[^\[\]]+)\])?(?:{re.escape(_LINE)}(?P<line>.+))?")


class Reason(StrEnum):
    """The reason of a refusal by a site's gate, as it is sent to the server."""

    POLICY = "the site's privacy policy cannot be used"
    PROTOCOL = "the task is of another version of the protocol than the site's"
    TASK = "the site's privacy policy does not allow this task"
    UNSEEN = "the site's gate has not checked the task, so no answer may leave"
    FORM = "the answer has a form that the site's gate does not recognise"
    DENIED = "the site's privacy policy does not allow a part of the answer"
    NOISE = "the site's privacy policy demands noise in the training, which the job lacks"
    PRECISION = "the site's privacy policy demands another precision of updates than the task asks for"
    VALUES = "the answer has values or shapes that the site's gate does not allow"
    BUDGET = "privacy budget spent"
    ANSWERS = "the site's privacy policy allows this job no more answers with scores"
    LEDGER = "the site's privacy ledger cannot be used"
    VERSION = "the site's data set is another version than its privacy ledger knows"
    DATASET = "the site's gate cannot identify the data set of the answer"
    SIZE = "the images of the task are larger than the site's privacy policy allows"
    DISK = "the site's disk is full or cannot be used"
    AUDIT = "the site's audit trail cannot be written"
    SUM = "the site's privacy policy lets a part of the answer out in a secure sum only, and the task asks for none"
    SUM_REFUSED = "the site's gate does not accept what was said about a secure sum"
    SUM_FILTERS = "the job has filters of answers, which secure sums do not allow"
    FAILED = "the site's gate failed"


FIELDS: Mapping[str, str] = {
    Reason.POLICY: "scopes", Reason.TASK: "tasks", Reason.DENIED: "releases", Reason.SIZE: "image_size",
    Reason.NOISE: "demands.noise_multiplier", Reason.PRECISION: "demands.update_precision",
    Reason.BUDGET: "target_epsilon", Reason.ANSWERS: "scored_answers", Reason.SUM: "releases", Reason.SUM_FILTERS: "sums",
}  # fmt: skip
"""The field of a policy by which a reason refuses."""
LASTING = frozenset({*FIELDS, Reason.PROTOCOL, Reason.VERSION, Fault.DATA, Fault.OPTIONS, Fault.TASK, Fault.STATE})
"""Reasons and faults that another attempt meets again, until a person changes something."""


@dataclass(frozen=True)
class Refusal:
    """A site's refusal.

    Attributes:
        cause: in words.
        rule: the field, or the releases, of the site's policy that it is about; empty where it is about none.
        line: what the hospital would add to the policy to allow it; empty where no line does.
        final: whether another attempt of the same job meets it again.
    """

    cause: str
    rule: str = ""
    line: str = ""
    final: bool = True

    def __str__(self) -> str:
        """As it travels.

        Example:
            >>> str(Refusal("no rule lets sums out", "releases"))
            'refused for good: no rule lets sums out [releases]'
        """
        rule, line = f" [{self.rule}]" if self.rule else "", f"; {self.advice}" if self.line else ""
        return f"{FINAL if self.final else ''}{self.cause}{rule}{line}"

    @property
    def advice(self) -> str:
        """What its hospital would do to allow it; empty where it is not for a policy to allow."""
        return f"its hospital would add to {PLACE}: {self.line}" if self.line else ""

    @classmethod
    def read(cls, text: str) -> Refusal | None:
        """What a site has sent; None if it is no refusal, but a failure.

        Example:
            >>> Refusal.read("privacy budget spent")
            Refusal(cause='privacy budget spent', rule='target_epsilon', line='', final=True)
            >>> Refusal.read(str(Refusal("no rule", "releases", "{...}"))).line, Refusal.read("KeyError")
            ('{...}', None)
        """
        if text in (*Reason, *Fault):
            return cls(text, FIELDS.get(text, ""), "", text in LASTING)
        found = _FORM.fullmatch(text)
        return None if found is None else cls(found["cause"], found["rule"] or "", found["line"] or "")


class RefusedBySites(GrandRoundsError):
    """Sites refuse what is asked of them, so that too few can take part however often it is asked."""
