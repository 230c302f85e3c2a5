"""Federated ridge regression at the server: three rounds of one message each, and a head that is exact.

In the first round sites count their labelled images, in the second they send sums of products of features at the class
weights that follow from the counts, and the server solves. In the third the head goes out, and the sites' validation images
choose the temperature of its scores. The head is that of all images together, however they are divided between sites.
"""

from __future__ import annotations

import json
import os
from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grandrounds.errors import ConfigurationError, GrandRoundsError, MessageError
from grandrounds.evaluation.counts import IMAGES, MARGIN_BINS, MOST_COUNTED
from grandrounds.evaluation.label_choice import Cuts
from grandrounds.evaluation.label_quotas import cuts_at, cuts_of, within
from grandrounds.evaluation.metrics import WORST_LOSS
from grandrounds.federation.server.controller import RoundController
from grandrounds.federation.server.means import OrderedMean
from grandrounds.federation.server.record import POOLED
from grandrounds.federation.server.sums import FEWEST
from grandrounds.methods.ridge.bounds import share_notes, used_shares
from grandrounds.methods.ridge.leave import head_of_sums
from grandrounds.methods.ridge.options import MOST_PENALTIES
from grandrounds.methods.ridge.phases import (
    ANSWERS,
    CANDIDATES,
    CENTRE,
    CLASS_COUNTS,
    CLASS_PATIENTS,
    CLASS_WEIGHTS,
    COUNT,
    LABEL_BUDGET,
    LABEL_CUTS,
    LABELS,
    LEAVING,
    LOGITS,
    LOSSES,
    OFFSET,
    PHASE,
    PHASES,
    SOLVE,
    SUMS,
    UNSEEN,
    VALIDATION_IMAGES,
    temperature_metric,
)
from grandrounds.models.closed_form.exchanged import exchanged
from grandrounds.models.closed_form.leaving_out import best_penalty
from grandrounds.models.closed_form.received import SYMMETRY, packed_shapes, wrong_sums
from grandrounds.models.closed_form.solve import (
    DEFAULT_CORRECTION,
    DEFAULT_PENALTIES,
    DEFAULT_TEMPERATURE,
    TEMPERATURES,
    best_cell,
    best_temperature,
    risk_offset,
    risk_terms,
    solve,
    solve_grid,
    standardised,
    uncorrected,
)
from grandrounds.models.closed_form.sums import (
    DEFAULT_BALANCE,
    DEFAULT_NORM,
    FEATURE_VIEWS,
    PRODUCTS,
    TARGETS,
    Sums,
    class_weights,
)
from grandrounds.models.depths import DepthHead, depth_head
from grandrounds.models.partial import frozen_digest
from grandrounds.models.registry import build_model
from grandrounds.models.split import head_name
from grandrounds.options import ABOVE_ZERO, FRACTION, METHOD, Min, Options
from grandrounds.ordering import natural_sorted
from grandrounds.privacy.gate.treatments import LABEL_MARGINS, SUPPORT
from grandrounds.privacy.secure_sums.summands import CONTRIBUTING, LARGEST_NORM, SUM_OF_WEIGHTS
from grandrounds.protocol.messages import GLOBAL, Payload, ReleaseKind, Result, State
from grandrounds.protocol.names import ELSEWHERE, OTHER_SOURCES, VALIDATION
from grandrounds.protocol.paths import SOURCES_VARIABLE
from grandrounds.protocol.problem import DEPTHS, TRAIN_HEAD

LEAVE_ONE_OUT = "leave_one_out"
VOID = ("errors at left-out sites", "bounds on a site's images", "checks of a site's sums", LEAVING)
"""What a sum over all sites does not allow."""
RELEASED = {COUNT: CLASS_COUNTS, SOLVE: SUMS, LABELS: LABEL_MARGINS}
"""What sites send in a phase; their losses are numbers where the server sees them."""
MOST_KEPT = 50
"""Sites whose sums the server keeps, to leave each of them out; with more it keeps their total alone."""


@dataclass(frozen=True)
class RidgeOptions(Options):
    """How the head is solved."""

    class_balance: Annotated[
        float,
        "beta: images of class c weigh (N / (C n_c))^beta; 1 balances classes, 0 weighs all images alike",
        FRACTION,
        METHOD,
    ] = DEFAULT_BALANCE
    prior_correction: Annotated[
        float,
        "tau: logits are lowered by tau times the log of a class's weighted share; 1 decides as if equally frequent",
        FRACTION,
        METHOD,
    ] = DEFAULT_CORRECTION
    penalties: Annotated[tuple[float, ...], "nu, the penalties of which penalty_rule chooses one", METHOD] = (
        DEFAULT_PENALTIES
    )
    penalty_rule: Annotated[
        Literal["auto", "leave_one_out", "validation"],
        "leave_one_out: the smallest squared error at left-out sites; validation: the smallest log loss of validation "
        "images, over penalties and temperatures; auto: validation where sums are secure, else leave_one_out",
        METHOD,
    ] = "auto"
    aggregation: Annotated[
        Literal["auto", "mean", "secure"],
        "mean: the server reads each site's sums; secure: only the sum over all sites; auto: secure where a site's policy "
        "asks for it, else mean",
        METHOD,
    ] = "auto"
    temperature: Annotated[
        float | None, "T, by which scores are multiplied; null chooses it by validation images", ABOVE_ZERO
    ] = None
    largest_norm: Annotated[float, "R, to which sites clip the norm of an image's features", ABOVE_ZERO] = DEFAULT_NORM
    weight_multiple: Annotated[
        float | None,
        "bound on a site's labelled images in sums that the server reads, and on its validation images, over the median of "
        "the sites'; null for none",
        ABOVE_ZERO,
    ] = 10.0

    def check(self) -> None:
        """Refuse penalties that are none, or too many, and errors that a sum over all sites does not tell."""
        if not 1 <= len(self.penalties) <= MOST_PENALTIES or min(self.penalties) <= 0:
            raise ConfigurationError(
                f"penalties must be 1 to {MOST_PENALTIES} positive numbers, got {list(self.penalties)}"
            )
        if self.aggregation == "secure":
            require_unseen(self.penalty_rule)


@dataclass(frozen=True)
class LabelOptions(Options):
    """Which images the sites are to label next; the head does not depend on it."""

    identifies_run: ClassVar[bool] = False

    label_budget: Annotated[
        int, "unlabelled images that all sites together are to label next, each from a list of its own; 0: none", Min(0)
    ] = 0


def require_unseen(penalty_rule: str) -> None:
    """Check that a penalty can be chosen where the server sees sums over all sites alone.

    Raises:
        ConfigurationError: if it needs the errors of single sites.
    """
    if penalty_rule == LEAVE_ONE_OUT:
        raise ConfigurationError(
            "penalty_rule=leave_one_out needs the sums of single sites, which secure sums hide: set "
            "controller.penalty_rule=validation, or have the sites take the policy open"
        )


class RidgeController(RoundController):
    """Solves the head of a frozen network from sums of all sites (``rounds`` is 3; a fourth one chooses images to label).

    Sums say much of a site: its counts of classes, and of a class with one image its features. The gate of a kit lets them
    out only if its policy has a rule for ``sufficient_statistics``, and never for classes of few patients.
    """

    needs_exclusive: ClassVar[bool] = False
    ridge: RidgeOptions
    labels: LabelOptions

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        rounds = len(PHASES)
        if self.rounds != rounds:
            raise ConfigurationError(f"ridge regression has {rounds} rounds here: controller.rounds must be {rounds}")
        for name, wanted in (("head", DEPTHS), ("trainable", TRAIN_HEAD)):
            if getattr(self.problem, name) != wanted:
                raise ConfigurationError(
                    f"ridge regression solves a head of several depths and trains nothing: set problem.{name}={wanted}"
                )
        self.phases: tuple[str, ...] = PHASES
        if self.labels.label_budget:
            self.problem.kind.require_exclusive(f"controller.{LABEL_BUDGET}", "set it to 0")
            self.phases = (*PHASES, LABELS)
            self.run = replace(self.run, rounds=len(self.phases))
            self.rounds = self.run.rounds
        if self.ridge.class_balance:
            self.problem.kind.require_exclusive("controller.class_balance", "set it to 0")

    @property
    def most_rounds(self) -> int:
        """See :attr:`RoundController.most_rounds`: a run that has chosen images has its head, too."""
        return len(PHASES) + 1

    @property
    def phase(self) -> str:
        """Of this round."""
        return self.phases[min(self.round_number, len(self.phases)) - 1]

    def start(self) -> None:
        """Build the network; its head is zero."""
        self._network = build_model(self.problem.model_spec(pretrained=True), self.seed).eval()
        self.frozen_digest = frozen_digest(self._network)
        classes, features = len(self.problem.classes), self.head.features
        self.packed_shapes = packed_shapes(features, classes)
        self.head.set_linear(torch.zeros(classes, features), torch.zeros(classes))
        self._counts: dict[str, Tensor] = {}
        self._patients: dict[str, Tensor] = {}
        self._sums: dict[str, Sums] = {}
        self._total: Sums | None = None
        self._solved: list[Tensor] = []
        self._penalty: float | None = None
        self._elsewhere: tuple[Tensor, ...] = ()
        self._cuts: dict[str, dict[str, Tensor]] = {}
        self._chosen = 0
        self._contributors: tuple[str, ...] = ()
        self._labelled = 0.0
        self.losses: dict[str, Mapping[str, float]] = {}
        self.notes: dict[str, Any] = {}
        self.bound_notes: dict[str, Any] = {}

    @property
    def head(self) -> DepthHead:
        """Of the network."""
        return depth_head(self._network)

    def open_round(self, sites: list[str]) -> None:
        """Expect an answer from each of these sites."""
        self.notes, self.bound_notes = {}, {}
        streams = self.phase == SOLVE and len(sites) > MOST_KEPT and not self.is_secure()
        self._mean, self._added = OrderedMean(sites) if streams else None, 0
        self._checked: dict[str, Sums] = {}
        self._margins: dict[str, Tensor] = {}
        if self.is_secure():
            self.record.note_void(VOID)
            name = {**RELEASED, LOGITS: LOSSES}[self.phase]
            self.sums.open(name, sites, kinds={name: ReleaseKind.SUFFICIENT_STATISTICS})

    def is_secure(self) -> bool:
        """Whether the server learns sums over all sites and nothing of a single one."""
        return self.sums.covers(self.ridge.aggregation, ReleaseKind.SUFFICIENT_STATISTICS)

    def sites_ready(self, sites: list[str]) -> None:
        """Have the sites say what leaves them masked, where sums may be secure.

        Raises:
            ConfigurationError: if they are, and the penalty is to be chosen by errors of single sites.
        """
        if self.sums.settle(self.ridge.aggregation, ReleaseKind.SUFFICIENT_STATISTICS, sites):
            require_unseen(self.ridge.penalty_rule)

    @property
    def penalty_rule(self) -> str:
        """How the penalty is chosen."""
        automatic = VALIDATION if self.is_secure() else LEAVE_ONE_OUT
        return automatic if self.ridge.penalty_rule == "auto" else self.ridge.penalty_rule

    def payload_for(self, site: str) -> Payload:
        """The phase, the model, and what its phase needs."""
        parts: dict[str, State] = {GLOBAL: self.model()}
        if self.phase == SOLVE:
            parts[CLASS_WEIGHTS] = {CLASS_WEIGHTS: self._weights()}
        if self.phase == LOGITS:
            centre, offsets = uncorrected(self.problem.kind, self._class_shares(), self._weights())
            parts |= {LOGITS: {CENTRE: centre, OFFSET: offsets}, CANDIDATES: self._candidates()}
        if self.phase == LABELS:
            parts[LABELS] = {LABELS: self._used_counts().round().long()}
        budget = {LABEL_BUDGET: self.labels.label_budget} if self.labels.label_budget else {}
        secure = {UNSEEN: True, SUM_OF_WEIGHTS: self._bound} if self.is_secure() else {}
        return self.payload(parts, **{PHASE: self.phase, LARGEST_NORM: self.ridge.largest_norm, **budget, **secure})

    def check(self, site: str, result: Result) -> None:
        """Refuse counts and sums that cannot be of a site's images.

        Raises:
            MessageError: naming what is wrong.
        """
        if self.is_secure():
            return  # nothing of a single site is here
        if self.phase == LOGITS:
            lacking = [name for name in self.loss_names if name not in result.metrics]
            if 0 < len(lacking) < len(self.loss_names):
                raise MessageError(f"{site} has sent only some of the losses of its validation images")
            return
        name = RELEASED[self.phase]
        if name not in result.releases:
            raise MessageError(f"{site} has not sent its {name}")
        tensors = dict(result.releases[name].tensors)
        expected = (
            {**self.packed_shapes, SUPPORT: self.class_shape}
            if name == SUMS
            else {
                name: (*((MARGIN_BINS,) if name == LABEL_MARGINS else ()), *self.class_shape),
                SUPPORT: self.class_shape,
            }
        )
        came = {entry: tuple(value.shape) for entry, value in tensors.items()}
        if came != expected:
            raise MessageError(f"{name} of {site} must be of shapes {expected}, got {came}")
        if name != SUMS:
            if bool((tensors[name] < 0).any()) or tensors[name].dtype != torch.int64:
                raise MessageError(f"{name} of {site} must be counts")
            if bool((tensors[name] > MOST_COUNTED).any()):
                raise MessageError(f"{name} of {site} must be at most {MOST_COUNTED:g}")
            return
        self._check_sums(site, tensors)

    def _check_sums(self, site: str, tensors: State) -> None:
        if any(tensors[name].dtype != torch.float64 for name in (PRODUCTS, TARGETS)):
            raise MessageError(f"{SUMS} of {site} must be in float64")
        sums = Sums.unpacked(tensors)
        counts = self._counts.get(site)
        if counts is None:
            raise MessageError(f"{site} has sent no counts in the first round")
        expected = self._weights() * counts
        wrong = wrong_sums(sums, self.problem.kind, self.ridge.largest_norm)
        if not wrong and bool(((sums.targets[-1] - expected).abs() > SYMMETRY * (1 + expected)).any()):
            wrong = "they are not of the images that it has counted"
        if wrong:
            raise MessageError(f"{SUMS} of {site}: {wrong}")
        self._checked[site] = sums

    @property
    def class_shape(self) -> tuple[int, ...]:
        """Of counts."""
        return (len(self.problem.classes),)

    def absorb(self, site: str, result: Result) -> None:
        """Keep a site's answer."""
        if self.is_secure():
            return
        if self.phase == LOGITS:
            if self.loss_names[0] in result.metrics:  # a site may have no such images, or a policy that keeps losses
                self.losses[site] = dict(result.metrics)
        elif self.phase == SOLVE:
            tensors = result.releases[SUMS].tensors
            self._patients[site] = tensors[SUPPORT].clone()
            share, checked = self._shares()[site], self._checked.pop(site)
            used = {name: tensors[name] if share == 1 else tensors[name] * share for name in self.packed_shapes}
            if self._mean is None:
                self._sums[site] = checked if share == 1 else Sums.unpacked(used)
            else:
                self._mean.add(site, used)
                self._added += 1
        elif self.phase == LABELS:
            self._margins[site] = result.releases[LABEL_MARGINS].tensors[LABEL_MARGINS].clone()
        else:
            self._counts[site] = result.releases[CLASS_COUNTS].tensors[CLASS_COUNTS].clone()

    def missed(self, site: str) -> None:
        """A site is not in the sum."""
        if self._mean is not None:
            self._mean.skip(site)

    def close_round(self) -> None:
        """Check the counts, solve, or choose by losses.

        Raises:
            GrandRoundsError: if no site has a labelled image, the equations have no solution, or a secure sum is lost.
        """
        if self.is_secure():
            self._take_sum()
        if self.phase == SOLVE:
            self._solve()
        elif self.phase == LOGITS:
            self._choose()
        elif self.phase == LABELS:
            self._choose_labels()
        else:
            total, names = self._used_counts().round().long(), self.problem.classes
            if self._one_question:
                self.bound_notes = share_notes(self._images(), self._multiple)
            self.notes = {"class_counts": dict(zip(names, total.tolist(), strict=True))}
            if not bool(total.any()):
                raise GrandRoundsError("no site has a labelled training image whose class may be counted")

    @property
    def _one_question(self) -> bool:
        """Whether the counts of all classes add up to the images."""
        return len(self.problem.kind.answers(len(self.problem.classes))) == 1

    def _images(self) -> dict[str, float]:
        """Labelled images of each site, where each is of one class; else how many findings they have."""
        return {site: float(self._counts[site].sum()) for site in natural_sorted(self._counts)}

    def _shares(self) -> dict[str, float]:
        """By which factor the counts and the sums of each site are used; 1 for findings, whose images are in the sums."""
        return used_shares(self._images(), self._multiple if self._one_question else None)

    @property
    def _multiple(self) -> float | None:
        """Of the median of the sites' numbers of images, which a sum over all sites does not tell."""
        return None if self.is_secure() else self.ridge.weight_multiple

    def _used_counts(self) -> Tensor:
        """Of all sites together, within their bounds."""
        return torch.stack([self._counts[site].double() * share for site, share in self._shares().items()]).sum(dim=0)

    def _weights(self) -> Tensor:
        """Of classes, from the counts of all sites."""
        return class_weights(self._used_counts(), self.ridge.class_balance)

    def _bound_findings(self) -> None:
        """Bound sums by their number of images, which counts of findings do not give; not where the total alone is kept."""
        if self._mean is not None:
            self.bound_notes = {"bounds_void": {site: ["weight"] for site in natural_sorted(self._counts)}}
            return
        images = {site: self._sums[site].weight for site in natural_sorted(self._sums)}
        for site, share in used_shares(images, self.ridge.weight_multiple).items():
            if share < 1:
                kept = self._sums[site]
                self._sums[site] = Sums(kept.products * share, kept.targets * share)
        self.bound_notes = share_notes(images, self.ridge.weight_multiple)

    def _solve(self) -> None:
        if not self._one_question:
            self._bound_findings()
        sites = [self._sums[site] for site in natural_sorted(self._sums)]
        if self._mean is not None:
            mean = self._mean.close()
            if mean is not None:
                self._total = Sums.unpacked({name: value * self._added for name, value in mean.items()})
        elif sites:
            self._total = sum(sites[1:], start=sites[0])
        if self._total is None or not self._total.weight > 0:
            raise GrandRoundsError("no site has sent sums of a labelled image")
        grid = self.ridge.penalties
        if self.penalty_rule == LEAVE_ONE_OUT:
            chosen, left = best_penalty(sites, grid)
            held_out = {"held_out_errors": {str(nu): left[nu].error for nu in sorted(left)}} if left else {}
            self._elsewhere = left[chosen].heads if left else ()
            self.notes, grid = {"penalty": chosen, **held_out}, (chosen,)
            self._penalty = chosen
            self._remark_exchanged(chosen)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # with another number the last bits would be others
        try:
            self._solved = solve_grid(self._total, grid)
        except ValueError as error:
            raise GrandRoundsError(f"round {self.round_number}: {error}") from error
        finally:
            torch.set_num_threads(threads)
        self._write(self._solved[len(grid) // 2], torch.zeros(self.class_shape, dtype=torch.float64), 1.0)
        views = ChainMap(*self._executors.values()).get("views", FEATURE_VIEWS) if self._executors else ()
        self.notes = {**self.notes, "views": list(views)}

    def _remark_exchanged(self, penalty: float) -> None:
        """Name the sites at which the heads of the others put two classes the other way round."""
        labelled = {site: self._sums[site] for site in natural_sorted(self._sums) if self._sums[site].weight > 0}
        if not self._elsewhere or not self._one_question:
            return
        heads = {site: self._elsewhere[number % len(self._elsewhere)] for number, site in enumerate(labelled)}
        for site, pair in exchanged(labelled, heads, self._patients, penalty).items():
            names = " and ".join(self.problem.classes[number] for number in pair)
            self.record.remark(
                f"the labels of {names} may be exchanged at {site}: the other sites' head scores the mean images of each as "
                "the other; look at some images of both there, and correct the label column",
                round=self.round_number,
            )

    def _candidates(self) -> dict[str, Tensor]:
        """The heads of all penalties, as a network has them."""
        assert self._total is not None
        heads = [standardised(solved, self._total) for solved in self._solved]
        entries = {"weight": [weight for weight, *_ in heads], "bias": [bias for _, bias, *_ in heads]}
        return {name: torch.stack(of_heads).float() for name, of_heads in entries.items()}

    def _class_shares(self) -> Tensor:
        """Of all images, by weight."""
        assert self._total is not None
        return self._total.targets[-1] / self._total.weight

    @property
    def loss_names(self) -> list[str]:
        """The metrics by which penalty and temperature are chosen."""
        count = 2 * max(len(self._solved), 1) * len(TEMPERATURES)
        return [temperature_metric(number) for number in range(count)]

    def summed_losses(self) -> tuple[list[float], int]:
        """The losses over all validation images, in the order of ``loss_names``, and their number; as sites are bounded."""
        images = {site: self.losses[site].get(VALIDATION_IMAGES, 0.0) for site in natural_sorted(self.losses)}
        self.bound_notes = share_notes(images, self._multiple)
        used = {site: images[site] * share for site, share in used_shares(images, self._multiple).items()}
        losses = [
            sum(used[site] * min(self.losses[site][name], WORST_LOSS) for site in used) for name in self.loss_names
        ]
        return losses, round(sum(used.values()))

    def _take_sum(self) -> None:
        """Take the sum over all sites for the answer of one; the checks of single sites' answers are made of it."""
        opened = self.sums.close()
        if opened is None:
            raise GrandRoundsError(f"round {self.round_number}: the sum over all sites is lost; submit the job again")
        (summed,) = opened.releases.values()
        if self.phase == COUNT:
            self._contributors = opened.contributors
            self._counts, self._patients = {POOLED: summed[CLASS_COUNTS]}, {POOLED: summed[SUPPORT].round().long()}
            self._labelled = float(summed[IMAGES])
            if round(float(summed[CONTRIBUTING])) < FEWEST:
                raise GrandRoundsError(
                    f"fewer than {FEWEST} sites have labelled images, so their sums would show those of single sites; run "
                    "the job with controller.aggregation=mean where policies let sums out"
                )
        elif opened.contributors != self._contributors:
            apart = ", ".join(natural_sorted({*opened.contributors} ^ {*self._contributors}))
            raise GrandRoundsError(
                f"round {self.round_number}: {apart} did not take part in all sums; submit the job again"
            )
        elif self.phase == SOLVE:
            self._check_sums(POOLED, summed)
            self._total = Sums.unpacked(summed)
        elif self.phase == LABELS:
            enough = round(float(summed[CONTRIBUTING])) >= FEWEST
            self._margins = {POOLED: summed[LABEL_MARGINS].round().long()} if enough else {}
        else:
            answers = float(summed[ANSWERS])
            means = (summed[LOSSES] / max(answers, 1.0)).tolist()
            self.losses = {POOLED: {VALIDATION_IMAGES: answers, **dict(zip(self.loss_names, means, strict=True))}}

    @property
    def _bound(self) -> float:
        """An upper bound of the sum of all images' weights; with images of several findings each weighs 1."""
        if not self._counts:
            return float(MOST_COUNTED)
        return float(self._weights() @ self._used_counts()) if self._one_question else self._labelled

    def _choose(self) -> None:
        """Choose temperatures and, of several heads, the penalty; without validation images the middle one."""
        losses, count = self.summed_losses()
        head, temperature = len(self._solved) // 2, DEFAULT_TEMPERATURE
        of_risks, kind, shares = temperature, self.problem.kind, self._class_shares()
        if count:
            decided, risked = torch.tensor(losses, dtype=torch.float64).reshape(2, len(self._solved), -1)
            head, temperature = best_cell(decided)
            of_risks = best_temperature(risked[head])
        temperature, of_risks = self.ridge.temperature or temperature, self.ridge.temperature or of_risks
        centre, offset = kind.centre_and_offset(shares, self.ridge.prior_correction)
        risk = risk_terms(offset, temperature, risk_offset(kind, shares, self._weights()), of_risks)
        self._write(self._solved[head], offset / temperature - centre, temperature, risk)
        if self.penalty_rule == VALIDATION:
            self._penalty = self.ridge.penalties[head]
        chosen = {"penalty": self.ridge.penalties[head]} if self.penalty_rule == VALIDATION else {}
        tempered = {"temperature": temperature, "risk_temperature": of_risks}
        self.notes = {**chosen, **tempered, "validation_images": count}

    def _choose_labels(self) -> None:
        """Cut the sum of the sites' counts where it has as many images as are to be labelled."""
        self._chosen = self.labels.label_budget
        self.notes = {LABEL_BUDGET: self._chosen}
        if not self._margins:
            self.record.remark(
                f"no images to label were chosen: fewer than {FEWEST} sites count unlabelled ones, so a secure sum "
                "shows those of single sites",
                round=self.round_number,
            )
            return
        used = self._used_margins()
        table = np.sum([*used.values()], axis=0)
        cuts = cuts_of(table, self._used_counts().round().long().numpy(), self._chosen)
        self._cuts = {POOLED: _tensors(cuts)}
        for site, own in used.items():
            claimed = self._margins[site].numpy()
            if own.sum() < claimed.sum():  # it takes as many as are counted of it, of all that it has
                self._cuts[site] = _tensors(cuts_at(claimed, within(own, cuts)))
                weights = {"weight": float(claimed.sum()), "weight_used": float(own.sum())}
                self.bound_notes.setdefault("bounded", {})[site] = weights
        self.notes["unlabelled_images"] = int(table.sum())

    def _used_margins(self) -> dict[str, NDArray[np.int64]]:
        """Counts of each site; none has more, in all and of a class, than the multiple of the median."""
        sites = natural_sorted(self._margins)
        claimed = np.stack([self._margins[site].sum(dim=0).double().numpy() for site in sites])
        whole, *shares = (
            used_shares(dict(zip(sites, column.tolist(), strict=True)), self._multiple)
            for column in (claimed.sum(axis=1), *claimed.T)
        )
        used = {}
        for site in sites:
            factors = np.array([min(share[site], whole[site]) for share in shares])
            upto = np.floor(self._margins[site].numpy().cumsum(axis=0) * factors).astype(np.int64)
            used[site] = np.diff(upto, axis=0, prepend=0)
        return used

    def _write(self, solved: Tensor, added: Tensor, *logits: Any) -> None:
        """Write a solution into the network's head, on standardised features, so that single precision is enough."""
        assert self._total is not None
        weights, bias, shift, scale = standardised(solved, self._total)
        self.head.set_linear(weights, bias + added, shift, scale, *logits)

    def parts_for_test(self, site: str) -> Mapping[str, State]:
        """How far the classes are to be labelled, and the head of the other sites, where these are known."""
        asked = self._cuts and self.labels.label_budget
        cuts = {LABEL_CUTS: self._cuts.get(site, self._cuts[POOLED])} if asked else {}
        return cuts if self.adds_up else {**cuts, **self._heads_elsewhere(site)}

    def _heads_elsewhere(self, site: str) -> Mapping[str, State]:
        """The heads of all other sites with labels, and of those of other sources, at penalty and temperature of all.

        None for a site without labels, where single sums are not known, and where the head would be that of one other site.
        """
        labelled = {name: sums for name, sums in self._sums.items() if sums.weight > 0}
        if site not in labelled or len(labelled) < FEWEST or self._penalty is None:
            return {}
        sources: Mapping[str, str] = json.loads(os.environ.get(SOURCES_VARIABLE, "{}"))
        alike = [name for name in labelled if name in sources and sources[name] == sources[site]]
        left_out = {ELSEWHERE: [site], **({OTHER_SOURCES: alike} if 0 < len(alike) <= len(labelled) - 2 else {})}
        heads = {name: self._head_without(without, labelled) for name, without in left_out.items()}
        prefix = head_name(self._network)
        return {
            name: {f"{prefix}.{entry}": value for entry, value in head.items()} for name, head in heads.items() if head
        }

    def _head_without(self, sites: list[str], labelled: Mapping[str, Sums]) -> State | None:
        """The head of the other sites with labels; None where their equations have no solution."""
        assert self._penalty is not None
        assert self._total is not None
        others = self._total
        for site in sites:
            others -= labelled[site]
        known = len(sites) == 1 and len(self._elsewhere) == len(labelled)  # else groups were left out
        try:
            solved = (
                self._elsewhere[natural_sorted(labelled).index(sites[0])] if known else solve(others, self._penalty)
            )
            task, correction = self.problem.kind, self.ridge.prior_correction
            return head_of_sums(self.head.state_dict(), others, solved, task, correction, self._weights())
        except ValueError as error:  # the run has its model, with or without these scores
            self.log_warning(self.fl_ctx, f"no head without {', '.join(sites)}: {error}")
            return None

    def model(self) -> State:
        """The network with the head that has been solved so far."""
        return dict(self._network.state_dict())

    def load_model(self, state: State) -> None:
        """Restore :meth:`model`."""
        self._network.load_state_dict(state)

    def round_notes(self) -> dict[str, Any]:
        """Counts of classes, the penalty with its errors and views, or the temperature; and whose claims were bounded."""
        return {**super().round_notes(), **self.bound_notes, **({"ridge": self.notes} if self.notes else {})}

    def state_dict(self) -> dict[str, Any]:
        """Counts and the head; sums are snapshots."""
        counted = {CLASS_COUNTS: self._counts, CLASS_PATIENTS: self._patients, "labelled": self._labelled}
        solved = {"contributors": self._contributors, "solved": self._solved, "penalty": self._penalty}
        chosen = {LABEL_CUTS: self._cuts, LABEL_BUDGET: self._chosen} if self._chosen else {}
        return {GLOBAL: self.model(), **counted, **solved, **chosen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore :meth:`state_dict`.

        Raises:
            ConfigurationError: if it has chosen images by another budget; sites answer that question once.
        """
        self._chosen = state.get(LABEL_BUDGET, 0)
        if self._chosen and self.labels.label_budget not in (0, self._chosen):
            raise ConfigurationError(
                f"run {self.run.run_name!r} has chosen images by controller.{LABEL_BUDGET}={self._chosen}, got "
                f"{self.labels.label_budget}: use another controller.run_name or workspace"
            )
        self.load_model(state[GLOBAL])
        self._counts, self._solved = dict(state[CLASS_COUNTS]), state["solved"]
        self._patients, self._labelled = dict(state[CLASS_PATIENTS]), state["labelled"]
        self._contributors, self._penalty = tuple(state["contributors"]), state.get("penalty")
        self._cuts = state.get(LABEL_CUTS, {})

    def snapshots(self) -> Mapping[str, tuple[int, State | None]]:
        """The sums of each site, or of more than ``MOST_KEPT`` their total."""
        second = PHASES.index(SOLVE) + 1
        kept = {site: sums.packed() for site, sums in self._sums.items()}
        if not kept and self._total is not None:
            kept = {SUMS: self._total.packed()}
        return {name: (second, packed) for name, packed in kept.items()}

    def load_snapshots(self, snapshots: Mapping[str, tuple[int, dict[str, Tensor]]]) -> None:
        """Restore :meth:`snapshots`."""
        sums = {name: Sums.unpacked(packed) for name, (_, packed) in snapshots.items()}
        self._total = sums.pop(SUMS, None)
        self._sums = sums
        if sums:
            sites = [sums[site] for site in natural_sorted(sums)]
            self._total = sum(sites[1:], start=sites[0])


def _tensors(cuts: Cuts) -> dict[str, Tensor]:
    return {name: torch.from_numpy(value) for name, value in cuts._asdict().items()}
