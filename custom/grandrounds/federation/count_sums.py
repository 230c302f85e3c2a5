"""Counts of tests in encrypted sums at the server, which adds them up and takes what all sites of a sum release of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from grandrounds.checks import told_as
from grandrounds.errors import MessageError
from grandrounds.evaluation.counts import IMAGES, PATIENTS, SiteCounts, check_counts, counts_shape
from grandrounds.evaluation.record import EvalRecord, pooled
from grandrounds.federation.encrypted_counts import count_shapes
from grandrounds.ordering import natural_sorted
from grandrounds.privacy.mechanisms.encrypted_sums import MIN_SITES, EncryptedSum
from grandrounds.protocol.messages import CONTRIBUTION, POOLED_RELEASES, State
from grandrounds.protocol.problem import Problem

Answers = Mapping[str, Mapping[str, State]]
"""By site and model."""


@dataclass(frozen=True, eq=False)
class PooledRecord:
    """The record of a model on the test images of the sites in a sum, or why there is none."""

    sites: tuple[str, ...]
    record: EvalRecord | None = None
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        found = {"record": self.record.to_json()} if self.record else {"reason": self.reason}
        return {"sites": list(self.sites), **found}


class CountSums:
    """The sums of one run, by model.

    Args:
        key: the public key.
        problem: whose vocabulary the counts are of.
        tests: the records of all tested sites, by site and model.
    """

    def __init__(self, key: bytes, problem: Problem, tests: Mapping[str, Mapping[str, EvalRecord]]) -> None:
        self._shape = counts_shape(problem.kind.answers(len(problem.classes)))
        self._tests = tests
        models = [model for model in POOLED_RELEASES if any(model in tested for tested in tests.values())]
        self._sums = {model: EncryptedSum(key, f"the counts of {model}") for model in models}
        self._refused: dict[str, str] = {}

    def add(self, given: Answers) -> None:
        """Add what sites have sent with a test; what cannot be added is left out, and named where a sum is missing."""
        for site in natural_sorted(given):
            for model in self._sums.keys() & given[site].keys():
                try:
                    self._add(self._sums[model], site, given[site][model])
                except MessageError as error:
                    self._refused[site] = str(error)

    def _add(self, total: EncryptedSum, site: str, tensors: State) -> None:
        if tensors.keys() != {CONTRIBUTION}:
            raise MessageError(f"{site} must encrypt its counts")
        total.check(site, tensors[CONTRIBUTION], count_shapes(self._shape))
        total.add(site, tensors[CONTRIBUTION])

    def parts(self) -> dict[str, dict[str, State]]:
        """The sums of enough sites, which each of their sites is sent, by site and name of the release."""
        found: dict[str, dict[str, State]] = {}
        for model, total in self._sums.items():
            packed = total.close()
            if packed is not None and len(total.roster) >= MIN_SITES:
                for site in total.roster:
                    found.setdefault(site, {})[POOLED_RELEASES[model]] = {CONTRIBUTION: packed}
        return found

    def close(self, released: Answers) -> dict[str, PooledRecord]:
        """The records of the sums, from what their sites have released of them."""
        return {model: self._closed(model, tuple(total.roster), released) for model, total in self._sums.items()}

    def _closed(self, model: str, sites: tuple[str, ...], released: Answers) -> PooledRecord:
        tested = [
            site for site, found in self._tests.items() if model in found and (found[model].images or site in sites)
        ]
        try:
            if len(sites) < MIN_SITES:
                reasons = "".join(f"; {reason}" for reason in self._refused.values())
                raise MessageError(
                    f"{len(sites)} of {len(tested)} sites have added their counts, a sum must be of at least "
                    f"{MIN_SITES}{reasons}"
                )
            counts = self._agreed(model, sites, released)
        except MessageError as error:
            return PooledRecord(sites, reason=str(error))
        records = [self._tests[site][model] for site in sites]
        together = pooled(records)
        if not all(one.images for one in records):  # a policy may let counts out without the number of images
            if counts.hidden.any():
                unknown = ", ".join(site for site in sites if not self._tests[site][model].images)
                return PooledRecord(sites, reason=f"a class is hidden, and {unknown} keeps the number of its images")
            together = replace(together, images=int(counts.images[:, :, :2].sum(axis=(1, 2)).max()), exact={})
        part = f"{len(sites)} of {len(tested)} sites" if len(sites) < len(tested) else ""
        return PooledRecord(sites, replace(together, counts=(counts,), sites=1, part=part))

    def _agreed(self, model: str, sites: tuple[str, ...], released: Answers) -> SiteCounts:
        tables = {}
        for site in sites:
            found = released.get(site, {}).get(model, {})
            if found.keys() != {IMAGES, PATIENTS}:
                raise MessageError(f"{site} has not released the sum of the counts")
            with told_as(MessageError, ValueError, where=site):
                tables[site] = check_counts(found[IMAGES].numpy(), found[PATIENTS].numpy(), self._shape)
        first, *others = tables.values()
        for site, other in zip(sites[1:], others, strict=True):
            if not all((one == two).all() for one, two in zip(first, other, strict=True)):
                raise MessageError(f"{sites[0]} and {site} have released different sums of the counts")
        return first
