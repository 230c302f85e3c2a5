"""Sends tasks to sites and takes in their answers: registrations, results, dropped and refused sites."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.signal import Signal

from grandrounds.checks import reraised_as
from grandrounds.errors import GrandRoundsError, MessageError
from grandrounds.evaluation.clinical.image_moments import MOMENTS, channels_of
from grandrounds.evaluation.counts import IMAGES, MOST_COUNTED, PATIENTS, UNITS, SiteCounts, check_counts, counts_shape
from grandrounds.evaluation.curves.binned import CURVE_COUNTS, MINIMUM, SiteCurves, decode_counts, write_curves
from grandrounds.evaluation.metrics import score_range
from grandrounds.evaluation.site_record import NUMBER, UNIT
from grandrounds.federation.server.exchange import Assignment, Exchange, ReplyOutcome, SignsOfLife
from grandrounds.federation.server.hooks import RoundHooks
from grandrounds.federation.server.options import RunOptions
from grandrounds.federation.server.record import RunRecord
from grandrounds.federation.server.sites import LedgerPins, SiteRegistry
from grandrounds.federation.server.subscribers import RoundSubscriber, Subscribers
from grandrounds.federation.server.sums import SumService
from grandrounds.models.trained import write_released
from grandrounds.ordering import natural_sorted
from grandrounds.privacy.gate.treatments import SUPPORT
from grandrounds.protocol.messages import COUNTS as COUNT_RELEASES
from grandrounds.protocol.messages import (
    CURVES,
    IMAGE_MOMENTS,
    JOIN,
    SITE_MODEL,
    SUM_PART,
    TEST,
    TRAIN,
    Registration,
    ReleaseKind,
    Result,
    State,
    tensor_bytes,
)
from grandrounds.protocol.paths import result_folder
from grandrounds.protocol.problem import Problem
from grandrounds.protocol.refusal import RefusedBySites

NOT_OF_METHODS = (ReleaseKind.COUNTS, ReleaseKind.IMAGE_MOMENTS, ReleaseKind.MASKED_SUM)
"""Kinds of releases that no method has."""
NOT_COUNTED = (ReleaseKind.CURVES, ReleaseKind.COUNTS, ReleaseKind.IMAGE_MOMENTS)
"""Kinds whose bytes are no part of what training costs."""
ASKED_SECONDS = 300.0
"""In which a site answers what needs no work."""
ROUNDING = 1e-6
"""By which a score may be beyond the ends of its range."""


class TaskDispatcher:
    """Sends tasks, checks what sites answer, records it and hands it to the method.

    Args:
        controller: FLARE's, which sends the tasks.
        hooks: of the method.
        run: how long answers are waited for, and how many are needed.
        problem: whose vocabulary curves and counts must have.
        sites: registered, refused and paused sites; kept up to date.
        record: of the run.
        subscribers: are notified of answers.
        fl_ctx: FLARE's context of the server.
        abort_signal: FLARE's.
        sums: take in what comes masked.
        signs: of life of the sites; None where they are all on one machine, and a site that waits its turn is not late.
        takes_models: whether sites may release their own models with their tests.

    Attributes:
        metrics: of the answers to the last tasks, by site.
        counts: of their predictions, by site and by model or ``validation``; of sites whose gate lets them out.
        moments: of the training images, by site; of sites whose gate lets them out.
    """

    def __init__(
        self,
        controller: Controller,
        hooks: RoundHooks,
        run: RunOptions,
        problem: Problem,
        sites: SiteRegistry,
        record: RunRecord,
        subscribers: Subscribers,
        fl_ctx: FLContext,
        abort_signal: Signal,
        sums: SumService,
        signs: SignsOfLife | None = None,
        takes_models: bool = False,
    ) -> None:
        self._sums = sums
        self._signs, self._takes_models = signs, takes_models
        self._controller, self._hooks = controller, hooks
        self._run, self._problem, self._classes = run, problem, problem.classes
        self._sites, self._record, self._subscribers = sites, record, subscribers
        self._fl_ctx, self._abort_signal = fl_ctx, abort_signal
        self._pins = LedgerPins(fl_ctx)
        self._round_number = 0
        self.metrics: dict[str, dict[str, float]] = {}
        self.counts: dict[str, dict[str, SiteCounts]] = {}
        self.moments: dict[str, NDArray[np.float64]] = {}

    def connected_sites(self) -> list[str]:
        """The connected sites that have not been refused."""
        names = natural_sorted(client.name for client in self._fl_ctx.get_engine().get_clients())
        return [name for name in names if name not in self._sites.refused]

    def register(self, available: list[str]) -> list[str]:
        """Have sites register that have not yet, and return those that have.

        Raises:
            GrandRoundsError: if they are too few, see :meth:`require_enough`.
        """
        registered, refused = self._sites.registered, self._sites.refused
        new = [site for site in available if site not in registered and site not in refused]
        dropped: dict[str, str] = {}
        if new:
            # Newcomers are not waited for longer than stragglers where those that are known could work without them.
            enough = max(0, self._run.min_sites - sum(site in registered for site in available))
            tasks = {site: Assignment(JOIN, self._hooks.registration_for(site)) for site in new}
            outcome = self.exchange(tasks, self._run.grace, enough)
            dropped = outcome.dropped
            refused |= {site: refusal.cause for site, refusal in outcome.refused.items() if refusal.final}
            self._sites.sort()
        ready = [site for site in available if site in registered]
        if new:
            self.require_enough(ready, dropped)
        return ready

    def require_enough(self, ready: Sequence[str], dropped: Mapping[str, str] | None = None) -> None:
        """Stop where too few sites can take part.

        Args:
            ready: the sites that can.
            dropped: sites that gave no valid registration, with the reason.

        Raises:
            GrandRoundsError: if there are fewer than ``min_sites``, and one was refused or could not join; with the reason
                of each. A ``RefusedBySites`` if so many refuse for good that the others are too few.
        """
        refused = self._sites.refused
        gone = {site: reason for site, reason in (dropped or {}).items() if site not in refused}
        if len(ready) >= self._run.min_sites or not (gone or refused):
            return
        lists = (("refused were", refused), ("could not join:", gone))
        reasons = [f"{what} {_listed(sites)}" for what, sites in lists if sites]
        final = [site for site, refusal in self._sites.refusals.items() if refusal.final and site in refused]
        others = len(ready) + len(gone) + len(refused) - len(final)
        error = RefusedBySites if final and others < self._run.min_sites else GrandRoundsError
        raise error(
            f"{len(ready)} of the connected sites can take part, min_sites is {self._run.min_sites}; "
            + "; ".join(
                [*reasons, *filter(None, [self._hooks.joining_needs()]), "fix these sites and submit the job again"]
            )
        )

    def exchange(
        self, assignments: Mapping[str, Assignment], grace: float | None, enough: int | None = None
    ) -> ReplyOutcome:
        """Give each site its task and take in the answers.

        Args:
            assignments: by site.
            grace: seconds without a sign of life after which a site is dropped once enough have answered; None waits until
                the timeout.
            enough: number of answers after which only ``grace`` is waited; None for ``min_sites``.

        Raises:
            RunAborted: if FLARE aborts the job.
        """
        self.metrics, self.counts, self.moments = {}, {}, {}
        for site, (_, payload) in assignments.items():
            self._round_number = payload.round_number
            self._record.count_bytes(site, "down", tensor_bytes(payload.parts))
        pinned = {
            site: Assignment(task, self._pins.pinned(site, self._sums.attached(site, task, payload)))
            for site, (task, payload) in assignments.items()
        }
        waits = (self._run.round_timeout, grace if self._signs else None)
        exchange = Exchange(self._controller, self._fl_ctx, *waits, self._received, self._signs)
        # Scores come quickly; only training answers may end the wait for others that train.
        training = [site for site, assignment in assignments.items() if assignment.task == TRAIN]
        needed = self._run.min_sites if enough is None else enough
        outcome = exchange.run(pinned, needed, self._abort_signal, training or None)
        for site in assignments:
            if site in outcome.answered:
                self._sites.health.answered(site)
                self._sites.refusals.pop(site, None)
            else:
                self._drop(site, outcome.dropped.get(site), site in outcome.silent)
        self._sites.refusals |= outcome.refused
        return outcome

    def ask(
        self, assignments: Mapping[str, Assignment], on_result: Callable[[str, str, Result], None], enough: int
    ) -> ReplyOutcome:
        """Ask sites something that needs no work, beside their tasks.

        Args:
            assignments: by site.
            on_result: takes each valid answer; FLARE's lock is held.
            enough: number of answers after which only the grace time is waited.

        Raises:
            RunAborted: if FLARE aborts the job.
        """

        def received(site: str, task: str, answer: Result) -> None:
            if self._pins.note(site, self._problem.dataset, answer):
                self._changed(site)
            on_result(site, task, answer)
            self._record.count_bytes(site, "up", tensor_bytes({task: answer.releases[SUM_PART].tensors}))

        pinned = {
            site: Assignment(task, self._pins.pinned(site, payload)) for site, (task, payload) in assignments.items()
        }
        waits = (min(self._run.round_timeout, ASKED_SECONDS), self._run.grace if self._signs else None)
        exchange = Exchange(self._controller, self._fl_ctx, *waits, received, self._signs)
        return exchange.run(pinned, enough, self._abort_signal)

    def _drop(self, site: str, reason: str | None, silent: bool) -> None:
        number = self._round_number
        self._sites.health.missed(site, number, silent)
        self._record.event("dropped", round=number, site=site, reason=reason or "")

    def _changed(self, site: str) -> None:
        """Other images under the same manifest: what the site has answered before was about the earlier ones.

        The remark has no ``round``, because a run that goes back does not take it back.
        """
        number, dataset = self._round_number, self._problem.dataset
        text = f"images of {site} in {dataset!r} have changed under the same manifest, as round {number} told"
        self._record.remark(text, site=site, dataset=dataset)

    def _received(self, site: str, task: str, answer: Result) -> None:
        if self._pins.note(site, self._problem.dataset, answer):
            self._changed(site)
        counts, moments = received_counts(answer, self._problem), received_moments(answer, self._problem.channels)
        self._sums.check(site, answer)
        # A method sees its own releases alone.
        own = {name: release for name, release in answer.releases.items() if release.kind not in NOT_OF_METHODS}
        result = replace(answer, releases=own)
        if task == TRAIN:
            self._hooks.check(site, result)
        if task == JOIN:
            self._register(site, Registration(dict(result.metrics), dict(result.facts)))
        require_possible_scores(result.metrics)
        require_possible_numbers(result.metrics)
        self._write_tested(site, task, result)
        number, record = self._round_number, self._record
        # Curves and counts are not part of what training costs; like the scores they come with, they are not counted.
        released = {
            name: release.travelled_bytes
            for name, release in answer.releases.items()
            if release.kind not in NOT_COUNTED
        }
        facts = {"facts": dict(result.facts)} if result.facts else {}
        left = {"released": released_parts(answer)} if answer.releases else {}
        record.event("answer", round=number, site=site, task=task, metrics=result.metrics, **facts, **left)
        self._subscribers.tell(RoundSubscriber.answered, site, number, result.metrics)
        record.count_bytes(site, "up", released)
        record.note_privacy(site, {name: release.treated for name, release in answer.releases.items()}, result.metrics)
        # Last, when nothing can go wrong any more: what is absorbed counts.
        if SUM_PART in answer.releases:
            self._sums.take(site, answer.releases[SUM_PART])
        if task == TRAIN:
            self._hooks.absorb(site, result)
            record.note_training(site, number, result.metrics)
        self.metrics[site], self.counts[site] = dict(result.metrics), counts
        self.moments |= {} if moments is None else {site: moments}

    def _write_tested(self, site: str, task: str, result: Result) -> None:
        """Write a site's curves, and its own model, into its folder of the results."""
        folder, model = result_folder(self._fl_ctx) / site, released_model(result, self._takes_models and task == TEST)
        for name, curves in received_curves(result, self._classes).items() if task == TEST else ():
            write_curves(folder / f"{name}.json", curves, self._classes)
        if model is not None:
            write_released(folder, model, self._problem, self._record.run_id)

    def _register(self, site: str, registration: Registration) -> None:
        try:
            self._hooks.check_registration(site, registration)
        except GrandRoundsError as error:
            self._sites.refused[site] = str(error)
            raise
        self._sites.registered[site] = registration
        self._record.registered[site] = registration.to_dict()


def released_parts(answer: Result) -> dict[str, dict[str, Any]]:
    """What has left a site, by name: kind, bytes of tensors, and the gate's treatment if it reports one."""
    return {
        name: {
            "kind": release.kind.value,
            "bytes": release.travelled_bytes,
            **({"treated": release.treated} if release.treated else {}),
        }
        for name, release in answer.releases.items()
    }


def require_possible_scores(metrics: Mapping[str, float]) -> None:
    """Check the scores of a model, whatever its name and its images: no site can claim more than a perfect one.

    Losses at several temperatures, such as ``validation.log_loss.3``, are at least 0; they have no upper end.

    Raises:
        MessageError: naming the metric.

    Example:
        >>> require_possible_scores({"validation.accuracy": 1.0, "common.log_likelihood": -0.3, "loss": -2.0})
        >>> require_possible_scores({"common.log_likelihood": 1e9})
        Traceback (most recent call last):
        grandrounds.errors.MessageError: common.log_likelihood is at most 0, got 1e+09
    """
    for name, value in metrics.items():
        _, *parts = name.split(".")
        for position, part in enumerate(parts, 1):
            lowest, highest = score_range(part)
            if value > highest + ROUNDING and position == len(parts):
                raise MessageError(f"{name} is at most {highest:g}, got {value:g}")
            if value < lowest - ROUNDING:
                raise MessageError(f"{name} is at least {lowest:g}, got {value:g}")


def require_possible_numbers(metrics: Mapping[str, float]) -> None:
    """Check numbers of images, and what a case is.

    Raises:
        MessageError: naming the metric.

    Example:
        >>> require_possible_numbers({"validation.n": 12.0, "validation.unit": 2.0})
        >>> require_possible_numbers({"common.n": 1e12})
        Traceback (most recent call last):
        grandrounds.errors.MessageError: common.n must be in [0, 1e+09], got 1e+12
        >>> require_possible_numbers({"validation.unit": 9.0})
        Traceback (most recent call last):
        grandrounds.errors.MessageError: validation.unit must be in [0, 2], got 9
    """
    for name, value in metrics.items():
        part = name.rpartition(".")[2]
        if part == NUMBER and not 0 <= value <= MOST_COUNTED:
            raise MessageError(f"{name} must be in [0, {MOST_COUNTED:g}], got {value:g}")
        if part == UNIT and value not in range(len(UNITS)):
            raise MessageError(f"{name} must be in [0, {len(UNITS) - 1}], got {value:g}")


def released_model(result: Result, asked: bool) -> State | None:
    """The site's own model in an answer, if there is one.

    Raises:
        MessageError: if it was not asked for, or is a release of another name or kind.
    """
    releases = result.releases
    named = [name for name, release in releases.items() if name == SITE_MODEL or release.kind is ReleaseKind.SITE_MODEL]
    for name in named:
        if not asked or name != SITE_MODEL or releases[name].kind is not ReleaseKind.SITE_MODEL:
            raise MessageError(
                f"{name} of kind {releases[name].kind}: a site's own model comes with a test, as {SITE_MODEL}, if the job "
                "has executor.release_model=true"
            )
    return releases[SITE_MODEL].tensors if named else None


def received_curves(result: Result, classes: tuple[str, ...]) -> dict[str, SiteCurves]:
    """The curves in an answer, by the release's name.

    Raises:
        MessageError: if a name is not in ``CURVES``, or counts are misshapen or of fewer than ``MINIMUM`` cases.
    """
    curves = {}
    for name, release in result.releases.items():
        if release.kind is not ReleaseKind.CURVES:
            continue
        if name not in CURVES.values() or release.tensors.keys() != {CURVE_COUNTS}:
            raise MessageError(f"curves must be {' or '.join(CURVES.values())} with {CURVE_COUNTS}, got {name!r}")
        with reraised_as(MessageError, ValueError, where=name):
            curves[name] = decode_counts(release.tensors[CURVE_COUNTS].numpy(), classes, MINIMUM)
    return curves


def received_counts(result: Result, problem: Problem) -> dict[str, SiteCounts]:
    """The counts in an answer, by model or ``validation``.

    Raises:
        MessageError: if a name is not in ``COUNTS``, or counts are misshapen or contradictory.
    """
    tables = {}
    models = {name: model for model, name in COUNT_RELEASES.items()}
    shape = counts_shape(problem.kind.answers(len(problem.classes)))
    for name, release in result.releases.items():
        if release.kind is not ReleaseKind.COUNTS:
            continue
        if name not in models or release.tensors.keys() != {IMAGES, PATIENTS}:
            known = ", ".join(COUNT_RELEASES.values())
            raise MessageError(f"counts must be one of {known} with {IMAGES} and {PATIENTS}, got {name!r}")
        with reraised_as(MessageError, ValueError, where=name):
            images, patients = (release.tensors[part].numpy() for part in (IMAGES, PATIENTS))
            tables[models[name]] = counts = check_counts(images, patients, shape)
            if counts.hidden.any():
                raise ValueError("a table of counts leaves a site whole or not at all")
    return tables


def received_moments(result: Result, channels: int) -> NDArray[np.float64] | None:
    """The moments of training images in an answer; None if there are none, or of too few patients.

    Raises:
        MessageError: if they are misshapen.
    """
    release = result.releases.get(IMAGE_MOMENTS)
    if release is None or release.kind is not ReleaseKind.IMAGE_MOMENTS:
        return None
    if release.tensors.keys() != {MOMENTS, SUPPORT}:
        raise MessageError(f"{IMAGE_MOMENTS} must be {MOMENTS} and {SUPPORT}, got {sorted(release.tensors)}")
    moments = release.tensors[MOMENTS].double().numpy()
    with reraised_as(MessageError, ValueError, where=IMAGE_MOMENTS):
        received = channels_of(moments)
    if received != channels:
        raise MessageError(f"{IMAGE_MOMENTS} are of images of {received} channels, those of the run have {channels}")
    return moments if int(release.tensors[SUPPORT].sum()) > 0 else None


def _listed(reasons: Mapping[str, str]) -> str:
    return ", ".join(f"{site}: {reasons[site]}" for site in natural_sorted(reasons))
