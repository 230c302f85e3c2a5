"""What all methods' local training shares: steps, their checks and sums, and optimizers.

``Adam`` and ``SGD`` are torch's, with the same updates and states, but do not import torch's compiler. Torch's own import it
to mark their methods as not to be compiled, which takes longer than a short task, in every process that FLARE starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol, TypeVar, cast

import torch
from torch import Tensor, nn

from grandrounds.checks import on_host
from grandrounds.errors import GrandRoundsError
from grandrounds.federation.site.context import SiteContext
from grandrounds.models.split import head_of
from grandrounds.options import ABOVE_ZERO, Options

UNREAD_CHECKS = 64
MARKED = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")

Kind = TypeVar("Kind", bound=torch.optim.Optimizer)


def _plain(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method without torch's mark around it."""
    return getattr(method, "__wrapped__", method)


def _without_compiler(kind: type[Kind]) -> type[Kind]:
    methods = {name: _plain(getattr(kind, name)) for name in MARKED}
    # Beside marking, what torch has around a step keeps gradients off.
    step = torch.no_grad()(_plain(kind.step))
    described = f"torch.optim.{kind.__name__}, without waiting for the compiler."
    return cast(type[Kind], type(kind.__name__, (kind,), {**methods, "step": step, "__doc__": described}))


Adam = _without_compiler(torch.optim.Adam)
SGD = _without_compiler(torch.optim.SGD)


Algorithm = Literal["adam", "sgd"]


class Meter:
    """Sums of step statistics, and checks of values, that stay on the device until they are read.

    To read them makes the host wait for an accelerator, so that checks there are read ``UNREAD_CHECKS`` at a time and at the
    end of the steps. On a CPU a check is read at once.
    """

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._checks: list[tuple[str, Tensor]] = []

    def add(self, name: str, value: Tensor) -> None:
        """Add a scalar."""
        value = value.detach().double()
        self._sums[name] = self._sums[name] + value if name in self._sums else value

    def total(self, name: str) -> float:
        """The sum; zero when nothing was added."""
        return float(self._sums[name]) if name in self._sums else 0.0

    def require_finite(self, values: Tensor, what: str, step: int, rate: str = "executor.learning_rate") -> None:
        """Have training stop, now or later, because a loss or predictions are not finite.

        Args:
            values: to be checked.
            what: they are, for the error.
            step: counted from 0.
            rate: the option to lower.

        Raises:
            GrandRoundsError: if a check that is read has failed, naming the first such step; what was trained is of no use.
        """
        error = f"training diverged: the {what} of step {step} is not finite; lower {rate}"
        self._checks.append((error, torch.isfinite(values.detach()).all()))
        if on_host(values) or len(self._checks) == UNREAD_CHECKS:
            self.read_checks()

    def read_checks(self) -> None:
        """Read what :meth:`require_finite` has not read yet, and raise its error."""
        checks, self._checks = self._checks, []
        passed = torch.stack([check for _, check in checks]).tolist() if checks else []
        if not all(passed):
            raise GrandRoundsError(checks[passed.index(False)][0])


def proximal_loss(parameters: Sequence[Tensor], start: Sequence[Tensor], weight: float) -> Tensor:
    r"""Draw a site's model back to the global one (Li et al., "Federated Optimization in Heterogeneous Networks", 2020).

    .. math:: L_p = \frac{\mu}{2} \sum_j \lVert w_j - w^G_j \rVert^2

    Args:
        parameters: the trained parameters :math:`w_j`; buffers are not drawn back.
        start: the global model's, in the same order and of the same shapes; without gradient.
        weight: :math:`\mu`, at least zero.

    Returns:
        Scalar, at least zero.

    Example:
        >>> proximal_loss([torch.tensor([1.0, 3.0])], [torch.tensor([0.0, 1.0])], weight=0.1)  # 0.05 * (1 + 4)
        tensor(0.2500)
    """
    distances = [(now - before).square().sum() for now, before in zip(parameters, start, strict=True)]
    return weight / 2 * torch.stack(distances).sum()


class OptimizerStep:
    """Takes optimizer steps from the model that a round starts from, with FedProx's term where ``proximal_weight`` > 0.

    ``scaler`` is the context's, where the networks may compute in ``float16``; ``clip_norm`` bounds the norm of a step's
    gradient.
    """

    def __init__(
        self,
        network: nn.Module,
        optimizer: torch.optim.Optimizer,
        proximal_weight: float = 0.0,
        scaler: torch.amp.GradScaler | None = None,
        clip_norm: float | None = None,
    ) -> None:
        self._optimizer = optimizer
        self._clip_norm = clip_norm
        self._scaler = scaler
        self._weight = proximal_weight
        self._parameters = list(network.parameters())
        self._start = [parameter.detach().clone() for parameter in self._parameters] if proximal_weight else []

    def step(self, losses: Iterable[Tensor]) -> None:
        """Take one step down the sum of the losses; none if there is no loss."""
        self._optimizer.zero_grad(set_to_none=True)
        learned = False
        for loss in losses:
            self._add_gradient(loss)
            learned = True
        if not learned:
            return
        if self._weight:
            self._add_gradient(proximal_loss(self._parameters, self._start, self._weight))
        if self._scaler is None:
            self._clip()
            self._optimizer.step()
            return
        if self._clip_norm is not None:
            self._scaler.unscale_(self._optimizer)
            self._clip()
        self._scaler.step(self._optimizer)
        self._scaler.update()

    def _add_gradient(self, loss: Tensor) -> None:
        torch.autograd.backward(loss if self._scaler is None else self._scaler.scale(loss))

    def _clip(self) -> None:
        if self._clip_norm is not None:
            nn.utils.clip_grad_norm_(self._parameters, self._clip_norm)


class Step(Protocol):
    """Takes an optimizer step, as :class:`OptimizerStep` does."""

    def step(self, losses: Iterable[Tensor]) -> None:
        """Take one step down the sum of the losses (at least one); each has a graph of its own."""
        ...


def run_steps(context: SiteContext, steps: int, take: Callable[[int], None], purpose: str = "training") -> None:
    """The training loop of all methods.

    Torch's own generator is seeded for all steps together, so that ``take`` may draw dropout.

    Args:
        context: of the task.
        steps: how many.
        take: does a step, counted from 0. Its passes through the network belong under ``context.autocast()``.
        purpose: of the steps; phases of one task need different ones, or they draw the same dropout.

    Raises:
        TaskAborted: if the task was given up.
    """
    with context.torch_seeded(purpose):
        for step in range(steps):
            context.check_abort()
            take(step)


def train_steps(
    context: SiteContext,
    steps: int,
    loss_of: Callable[[int], Tensor | Iterable[Tensor] | None],
    descent: Step,
    meter: Meter,
    rate: str = "executor.learning_rate",
    purpose: str = "training",
) -> None:
    """Take the local steps of a round with one loss and one optimizer, see :func:`run_steps`.

    Args:
        context: of the task.
        steps: how many.
        loss_of: the loss of a step, counted from 0; None where the step has nothing to learn. Of several losses
            the step goes down the sum; an iterator takes less memory, because each has its backward pass before the next is
            asked for.
        descent: goes down the loss.
        meter: gets the sum of the losses as ``loss``.
        rate: the option of the learning rate, for the error.
        purpose: of the steps, see :func:`run_steps`.

    Raises:
        TaskAborted: if the task was given up.
        GrandRoundsError: if a loss is not finite.
    """

    def take(step: int) -> None:
        """Take a step, unless it has nothing to learn."""
        loss = loss_of(step)
        if loss is not None:
            descent.step(checked(step, [loss] if isinstance(loss, Tensor) else loss))

    def checked(step: int, losses: Iterable[Tensor]) -> Iterator[Tensor]:
        """The losses as they are computed, each finite and added to the meter."""
        for loss in losses:
            meter.require_finite(loss, "loss", step, rate)
            meter.add("loss", loss)
            yield loss

    run_steps(context, steps, take, purpose)
    meter.read_checks()


@dataclass(frozen=True)
class RateOptions(Options):
    """Learning rates by depth."""

    head_rate: Annotated[
        float, "learning rate of the network's head, as a multiple of that of the layers before it", ABOVE_ZERO
    ] = 1.0


def parameter_groups(network: nn.Module, head_rate: float) -> list[dict[str, Any]]:
    """The parameters of a network for an optimizer: the layers before the head, and the head.

    Args:
        network: with its head as its last child.
        head_rate: of :class:`RateOptions`; with 1 there is one group.

    Returns:
        Groups with ``params`` and ``factor``, by which the learning rate is multiplied.
    """
    everything = list(network.parameters())
    if head_rate == 1:
        return [{"params": everything, "factor": 1.0}]
    head = {id(parameter) for parameter in head_of(network).parameters()}
    parts = [[one for one in everything if (id(one) in head) == last] for last in (False, True)]
    return [{"params": part, "factor": factor} for part, factor in zip(parts, (1.0, head_rate), strict=True) if part]


def set_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Give each group of an optimizer its learning rate, see :func:`parameter_groups`."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * group.get("factor", 1.0)


def new_optimizer(
    parameters: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
    algorithm: Algorithm,
    learning_rate: float,
    **options: Any,
) -> torch.optim.Optimizer:
    """An optimizer without a past.

    Args:
        parameters: to train, or groups of :func:`parameter_groups`.
        algorithm: ``adam``, or ``sgd``.
        learning_rate: of all of them, times the factor of a group.
        options: torch's, such as ``betas``; without them there is neither momentum of SGD nor weight decay.

    Example:
        >>> new_optimizer(nn.Linear(2, 1).parameters(), "sgd", 0.1).param_groups[0]["weight_decay"]
        0
    """
    kind = Adam if algorithm == "adam" else SGD
    optimizer: torch.optim.Optimizer = kind(parameters, lr=learning_rate, fused=True, **options)
    set_rate(optimizer, learning_rate)
    return optimizer
