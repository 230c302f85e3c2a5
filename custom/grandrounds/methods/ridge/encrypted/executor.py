"""A site of ridge regression on encrypted sums: it encrypts its own, and solves and scores the head of the sum."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from grandrounds.data.batches import eval_batches
from grandrounds.errors import MessageError
from grandrounds.federation.encrypted_counts import COUNT_TOLERANCE
from grandrounds.federation.site.context import SiteContext
from grandrounds.methods.ridge.executor import RidgeExecutor
from grandrounds.methods.ridge.phases import (
    AGREE,
    CHOSEN_TEMPERATURE,
    CLASS_BALANCE,
    CLASS_COUNTS,
    COUNT,
    IMAGES_COUNTED,
    LARGEST_NORM,
    LOGITS,
    PENALTIES,
    PENALTY,
    PRIOR_CORRECTION,
    SOLVE,
    SOLVED,
    SUMS,
    VALIDATION_IMAGES,
    temperature_metric,
)
from grandrounds.models.closed_form.logits import TEMPERATURES, uncorrected
from grandrounds.models.closed_form.solve import solve, solve_grid, standardised
from grandrounds.models.closed_form.sums import SYMMETRY, Sums, class_weights, packed_shapes, wrong_sums
from grandrounds.models.depths import depth_features, depth_head
from grandrounds.models.inference.forward import BATCH
from grandrounds.privacy.mechanisms.ciphertexts import MAX_ENCODED
from grandrounds.privacy.mechanisms.encrypted_sums import Shapes, SumOf, decrypt_sum, encrypt_tensors
from grandrounds.protocol.messages import CONTRIBUTION, Payload, Release, ReleaseKind, Result

ROUNDS: Mapping[str, int] = {CLASS_COUNTS: 1, SUMS: 2}
"""In which contributions to a sum are made."""


class _Counted(NamedTuple):
    """What the sum of counts says: weights of classes, what targets add up to, and the largest sum of all weights."""

    weights: Tensor
    targets: Tensor
    most: float
    roster: Mapping[str, int]
    norm: float

    @property
    def factor(self) -> float:
        """By which sums are multiplied before they are encrypted, a power of two: with it none is too large.

        The error of a decrypted number is absolute, so small sums need a large factor.
        """
        return 2.0 ** math.floor(math.log2(MAX_ENCODED / (max(self.norm, 1.0) ** 2 * self.most)))


class EncryptedRidgeExecutor(RidgeExecutor):
    """Solves the sum of all sites, which the sites alone can decrypt; no class of a site is left out of it."""

    encrypts: ClassVar[bool] = True
    releases: ClassVar[Mapping[str, ReleaseKind]] = MappingProxyType(
        {
            CLASS_COUNTS: ReleaseKind.ENCRYPTED_VALUES,
            SUMS: ReleaseKind.ENCRYPTED_VALUES,
            SOLVED: ReleaseKind.SOLVED_HEAD,
        }
    )

    @property
    def answers(self) -> Mapping[Any, Callable[[Payload, SiteContext], Result]]:
        """To each phase."""
        return {COUNT: self._counted, SOLVE: self._added, LOGITS: self._scored, AGREE: self._solved}

    def minimum(self, context: SiteContext) -> int:
        """Nobody sees this site's sums."""
        return 0

    def _counted(self, payload: Payload, context: SiteContext) -> Result:
        _, targets, _ = self.labelled(context)
        counts = torch.from_numpy(targets.sum(axis=0))
        number = torch.tensor(float(len(targets)), dtype=torch.float64)
        return self._contribution(CLASS_COUNTS, {CLASS_COUNTS: counts, IMAGES_COUNTED: number}, payload, context)

    def _added(self, payload: Payload, context: SiteContext) -> Result:
        counted = self._counted_together(payload, context)
        sums, _, _ = self.site_sums(payload, context, counted.weights)
        scaled = {name: value * counted.factor for name, value in sums.packed().items()}
        return self._contribution(SUMS, scaled, payload, context)

    def _scored(self, payload: Payload, context: SiteContext) -> Result:
        rows, kind = context.data.rows("val"), context.problem.kind
        total = self._total(payload, context)
        if not len(rows):
            return Result(metrics={VALIDATION_IMAGES: 0.0}, samples=1)
        features, labels = self._features(rows, payload, context), torch.from_numpy(context.data.labels[rows])
        centre, offset = uncorrected(kind, total.targets[-1] / total.weight)
        losses: list[float] = []
        for head in solve_grid(total, payload.values[PENALTIES]):
            scores = features @ head[:-1] + head[-1] - centre
            losses += [float(kind.loss(one * scores + offset, labels)) for one in TEMPERATURES.tolist()]
        found = {temperature_metric(number): loss for number, loss in enumerate(losses)}
        return Result(metrics={**found, VALIDATION_IMAGES: float(len(rows))}, samples=1)

    def _solved(self, payload: Payload, context: SiteContext) -> Result:
        total, temperature = self._total(payload, context), payload.values[CHOSEN_TEMPERATURE]
        shares = total.targets[-1] / total.weight
        centre, offset = context.problem.kind.centre_and_offset(shares, payload.values[PRIOR_CORRECTION])
        weights, bias, shift, scale = standardised(solve(total, payload.values[PENALTY]), total)
        head = {"weights": weights, "bias": bias + offset / temperature - centre, "shift": shift, "scale": scale}
        released = {name: value.contiguous() for name, value in head.items()}
        return Result({SOLVED: Release(ReleaseKind.SOLVED_HEAD, released)}, samples=1)

    def _features(self, rows: Any, payload: Payload, context: SiteContext) -> Tensor:
        """Of images, averaged over the views of a test: the head is linear in them."""
        network = self.starting_model(payload, context).eval()
        views = dict.fromkeys(("none", context.problem.test_view or "none"))
        found = []
        for batch in eval_batches(rows, BATCH):
            context.check_abort()
            of_views = [depth_features(network, context.unchanged(batch, view)).double().cpu() for view in views]
            found.append(torch.stack(of_views).mean(dim=0))
        return torch.cat(found)

    def _contribution(self, name: str, tensors: Mapping[str, Tensor], payload: Payload, context: SiteContext) -> Result:
        """What this site adds to a sum."""
        packed = encrypt_tensors(tensors, context.site, self.secret_key, self._sum_of(name, payload))
        return Result({name: Release(ReleaseKind.ENCRYPTED_VALUES, {CONTRIBUTION: packed})}, samples=1)

    def _sum_of(self, name: str, payload: Payload) -> SumOf:
        return SumOf(payload.values["run_id"], name, ROUNDS[name])

    def _opened(self, name: str, shapes: Shapes, payload: Payload) -> tuple[dict[str, Tensor], dict[str, int]]:
        """A decrypted sum and its sites.

        After a sum that is not what it should be the site opens no other in this job: refusals are answers, too.
        """
        part = payload.parts.get(name, {})
        if part.keys() != {CONTRIBUTION}:
            raise MessageError(f"the task has no encrypted sum of {name}")
        use = self._sum_of(name, payload)
        try:
            return decrypt_sum(part[CONTRIBUTION], self.secret_key, shapes, use, self.confidentiality.min_models)
        except MessageError as error:
            self._unreadable = error
            raise

    def _counted_together(self, payload: Payload, context: SiteContext) -> _Counted:
        shapes: Shapes = {CLASS_COUNTS: (len(context.problem.classes),), IMAGES_COUNTED: ()}
        found, roster = self._opened(CLASS_COUNTS, shapes, payload)
        counts = found[CLASS_COUNTS].round()
        if bool(((counts - found[CLASS_COUNTS]).abs() > COUNT_TOLERANCE).any() | (counts < 0).any()):
            raise MessageError(f"the sum of {CLASS_COUNTS} is not one of counts")
        if not bool((counts > 0).any()):
            raise MessageError("no site has a labelled training image")
        weights = class_weights(counts, payload.values[CLASS_BALANCE])
        most = float(weights.max()) * float(found[IMAGES_COUNTED].round())
        return _Counted(weights, weights * counts, most, roster, payload.values[LARGEST_NORM])

    def _total(self, payload: Payload, context: SiteContext) -> Sums:
        """The sums of all sites, if they can be of the images that were counted."""
        counted = self._counted_together(payload, context)
        width = depth_head(self.network(context)).features
        found, summed = self._opened(SUMS, packed_shapes(width, len(context.problem.classes)), payload)
        total = Sums.unpacked({name: value / counted.factor for name, value in found.items()})
        wrong = wrong_sums(total, context.problem.kind, counted.norm)
        more = (total.targets[-1] - counted.targets) > SYMMETRY * (1 + counted.targets)
        if not wrong and (not summed.keys() <= counted.roster.keys() or bool(more.any())):
            wrong = "they are of images that were not counted"
        if wrong or not total.weight > 0:
            raise MessageError(f"the sum of {SUMS}: {wrong or 'it is of no image'}")
        return total
