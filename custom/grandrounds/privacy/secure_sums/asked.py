"""A task whose answer is to leave in a secure sum, as a site has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grandrounds.privacy.secure_sums.messages import SumTask
from grandrounds.privacy.secure_sums.party import SumParty
from grandrounds.privacy.secure_sums.summands import SumTerms, summed_words, words_to_tensors
from grandrounds.protocol.messages import SUM, Payload, ReleaseKind, State
from grandrounds.protocol.question import question_id

SUBJECT = "subject"
"""The tensor with the digest of what a site was asked, beside its masked numbers."""


@dataclass(frozen=True)
class AskedSum:
    """What a task says about a sum.

    Attributes:
        task: the phase and its attempt.
        terms: what the numbers depend on.
        subject: the digest of all that the task says; sites whose tasks differ have masks that do not cancel.
    """

    task: SumTask
    terms: SumTerms
    subject: bytes

    @classmethod
    def of(cls, name: str, payload: Payload, job: Mapping[str, Any]) -> AskedSum | None:
        """Read a task; None if it says nothing about a sum.

        Args:
            name: of the task.
            payload: its content.
            job: the arguments of the signed job's executors.

        Raises:
            MessageError: if what it says has another form.
        """
        content = payload.values.get(SUM)
        if content is None:
            return None
        task = SumTask.from_json(content)
        sites = len(task.roster.sites) if task.roster else 0
        terms = SumTerms(sites, task.weighted, job, payload.values)
        return cls(task, terms, bytes.fromhex(question_id(name, payload, task.weighted)))

    def masked(
        self, party: SumParty, releases: Mapping[str, tuple[ReleaseKind, State]], samples: int, fixed_for: str = ""
    ) -> tuple[dict[str, Tensor], float]:
        """A site's releases as it adds them to the sum.

        Args:
            party: the site's.
            releases: kind and tensors, by name.
            samples: training images behind them.
            fixed_for: the data set whose sums have fixed contributors; empty for updates.

        Returns:
            Masked words by ``release/tensor``, and the share of numbers that were clipped to their bound.

        Raises:
            MessageError: if a release cannot be added up, or the sum is not in the phase for that.
        """
        words, clipped = summed_words(releases, samples, self.terms)
        masked = words_to_tensors(party.masked(self.task, words, self.subject, fixed_for))
        subject = torch.from_numpy(np.frombuffer(self.subject, np.uint8).copy())
        return {**masked, SUBJECT: subject}, clipped / max(1, sum(value.size for value in words.values()))
