"""A site's part in secure sums where it has no gate: a simulation, which shows the arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from grandrounds.privacy.secure_sums.asked import AskedSum
from grandrounds.privacy.secure_sums.messages import SumTask
from grandrounds.privacy.secure_sums.simulated import SimulatedParty
from grandrounds.privacy.secure_sums.summands import SUMMANDS
from grandrounds.protocol.messages import SUM, SUM_PART, Payload, Release, ReleaseKind, Result

MASKED_RELEASE: Mapping[str, ReleaseKind] = {SUM_PART: ReleaseKind.MASKED_SUM}


def simulated_answer(site: str, payload: Payload) -> Result:
    """What a site says about a sum.

    Raises:
        MessageError: if what it is asked is not accepted.
    """
    answer = SimulatedParty(site, payload.values["run_id"]).answer(SumTask.from_json(payload.values.get(SUM)))
    return Result({SUM_PART: Release(ReleaseKind.MASKED_SUM, answer.to_tensors())})


def with_simulated_masks(site: str, task: str, payload: Payload, result: Result, job: Mapping[str, Any]) -> Result:
    """A result whose releases are masked as far as they can be added up, if the task asks for a sum.

    Args:
        site: the site's name.
        task: that is answered.
        payload: the task's content.
        result: of the executor.
        job: the arguments of the job's executors.

    Raises:
        MessageError: if a release cannot be added up.
    """
    asked = AskedSum.of(task, payload, job)
    if asked is None:
        return result
    summed = {name: release for name, release in result.releases.items() if release.kind in SUMMANDS}
    plain = {name: release for name, release in result.releases.items() if name not in summed}
    numbers = {name: (release.kind, release.tensors) for name, release in summed.items()}
    party = SimulatedParty(site, payload.values["run_id"])
    tensors, _ = asked.masked(party, numbers, result.samples)
    return replace(result, releases={**plain, SUM_PART: Release(ReleaseKind.MASKED_SUM, tensors)})
