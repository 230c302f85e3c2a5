"""A site's counts in encrypted sums: what leaves of a test in their place, and the release of a decrypted sum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from nvflare.apis.fl_context import FLContext

from grandrounds.errors import MessageError
from grandrounds.evaluation.counts import IMAGES, PATIENTS, counts_shape
from grandrounds.evaluation.metrics import OF_CLASSES
from grandrounds.evaluation.site_record import SiteRecord
from grandrounds.federation.encrypted_counts import LARGEST_MINIMUM, decrypt_counts, encrypt_counts
from grandrounds.federation.site.context import SiteContext
from grandrounds.federation.site.scoring import released
from grandrounds.privacy.mechanisms.encrypted_sums import MIN_SITES, SumOf, find_key
from grandrounds.protocol.messages import (
    CONTRIBUTION,
    COUNTS,
    CURVES,
    POOLED_RELEASES,
    Payload,
    Release,
    ReleaseKind,
    Result,
)
from grandrounds.protocol.paths import key_folders


@dataclass(frozen=True)
class CountPool:
    """The encrypted sums of counts that a site takes part in.

    Attributes:
        site: its name.
        key: the secret key.
        own: smallest number of cases behind a count of this site alone.
        minimums: the same of all sites together, by model; models whose counts the site keeps are missing.
        run: identity of the run.
        round_number: of the test.
        least: how many sites a sum must be of.
    """

    site: str
    key: bytes
    own: int
    minimums: Mapping[str, int]
    run: str = ""
    round_number: int = 0
    least: int = MIN_SITES

    @classmethod
    def of(cls, context: SiteContext, run: str, least: int, fl_ctx: FLContext) -> CountPool:
        """As the site's gate and its data set's minimum allow it.

        Raises:
            ConfigurationError: if there is no key.
        """
        own = context.data.min_support
        kind = ReleaseKind.POOLED_COUNTS
        asked = {model: context.gate.release_minimum(kind, name) for model, name in POOLED_RELEASES.items()}
        minimums = {model: max(own, minimum, 1) for model, minimum in asked.items() if minimum is not None}
        kept = {model: minimum for model, minimum in minimums.items() if minimum <= LARGEST_MINIMUM}
        key = find_key(key_folders(fl_ctx), context.site)
        return cls(context.site, key, own, kept, run, context.round_number, least)

    def sum_of(self, model: str) -> SumOf:
        """The sum of the counts of a model."""
        return SumOf(self.run, POOLED_RELEASES[model], self.round_number)

    def released(self, name: str, record: SiteRecord) -> Result:
        """What leaves of a record, as without sums, and its counts in the sum."""
        alone = released(name, record, self.own)
        if name not in self.minimums or not record.counts:
            return alone
        (counts,) = record.counts
        contribution = encrypt_counts(counts, self.minimums[name], self.site, self.key, self.sum_of(name))
        release = {POOLED_RELEASES[name]: Release(ReleaseKind.POOLED_COUNTS, {CONTRIBUTION: contribution})}
        return replace(alone, releases={**alone.releases, **release})

    def beside_sums(self, answer: Result) -> Result:
        """What may leave of a test's answer where its counts are in a sum that hides small ones.

        Counts, curves and exact scores of classes, of any model, have the sizes of the site's classes: with those of the
        other sites they give away what one hides.
        """
        if not any(self.minimums[model] > 1 and POOLED_RELEASES[model] in answer.releases for model in self.minimums):
            return answer
        told = {names[model] for names in (COUNTS, CURVES) for model in POOLED_RELEASES}
        releases = {name: one for name, one in answer.releases.items() if name not in told}
        metrics = {name: one for name, one in answer.metrics.items() if name.rpartition(".")[2] not in OF_CLASSES}
        return replace(answer, releases=releases, metrics=metrics)

    def opened(self, payload: Payload, context: SiteContext) -> Result:
        """The decrypted sums in a task, without counts of few cases.

        Raises:
            MessageError: if a sum is none of counts, of too few sites, or without this one.
        """
        shape = counts_shape(context.problem.kind.answers(len(context.problem.classes)))
        found = {}
        for model, name in POOLED_RELEASES.items():
            if model not in self.minimums or name not in payload.parts:
                continue
            if payload.parts[name].keys() != {CONTRIBUTION}:
                raise MessageError(f"{name} must be one encrypted sum")
            packed = payload.parts[name][CONTRIBUTION]
            counts = decrypt_counts(packed, self.site, self.key, shape, self.sum_of(model), self.least)
            tensors = {IMAGES: torch.from_numpy(counts.images), PATIENTS: torch.from_numpy(counts.patients)}
            found[name] = Release(ReleaseKind.POOLED_COUNTS, tensors)
        return Result(found)
