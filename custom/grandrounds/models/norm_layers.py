"""Layers in place of batch norm: with fixed statistics, trained or a site's own, or group norm, which has none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn
from torch.nn import functional as F

MAX_NORM_GROUPS = 32


def _group_count(channels: int) -> int:
    """The number of groups for a number of channels: the largest divisor up to 32 that leaves two channels per group.

    Example:
        >>> _group_count(64), _group_count(24), _group_count(7)
        (32, 12, 1)
    """
    return max(
        (groups for groups in range(1, MAX_NORM_GROUPS + 1) if channels % groups == 0 and channels >= 2 * groups),
        default=1,
    )


def to_group_norm(model: nn.Module, outside: Sequence[str] = ()) -> None:
    """Replace every ``BatchNorm1d`` and ``BatchNorm2d`` in place by a ``GroupNorm``; name, scale, shift, epsilon stay.

    The modules named in ``outside`` stay as they are.
    """
    kept = {module for name in outside for module in model.get_submodule(name).modules()}
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d) and module not in kept:
            group_norm = nn.GroupNorm(_group_count(module.num_features), module.num_features, eps=module.eps)
            group_norm.weight, group_norm.bias = module.weight, module.bias
            replace_module(model, name, group_norm)


class FrozenBatchNorm(nn.Module):
    r"""A batch norm whose statistics do not change in training; its scale and shift are trained.

    .. math:: y = \gamma \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + \beta

    It does not mix the samples of a batch. Its statistics are in no ``state_dict``: they come with the weights, and a site
    may use its own in their place (:func:`use_statistics`).
    """

    running_mean: Tensor
    running_var: Tensor
    mean: Tensor
    variance: Tensor

    def __init__(self, norm: nn.BatchNorm1d | nn.BatchNorm2d) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps
        self.register_buffer("running_mean", norm.running_mean, persistent=False)
        self.register_buffer("running_var", norm.running_var, persistent=False)
        self.register_buffer("mean", self.running_mean.clone(), persistent=False)
        self.register_buffer("variance", self.running_var.clone(), persistent=False)

    def forward(self, maps: Tensor) -> Tensor:
        """Map ``(batch, channels, ...)`` to the same shape."""
        return F.batch_norm(maps, self.mean, self.variance, self.weight, self.bias, eps=self.eps)


def to_frozen_norm(model: nn.Module) -> None:
    """Replace every ``BatchNorm1d`` and ``BatchNorm2d`` in place by a :class:`FrozenBatchNorm`."""
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            replace_module(model, name, FrozenBatchNorm(module))


def frozen_statistics(model: nn.Module) -> dict[str, Tensor]:
    """The statistics that came with the weights of the frozen batch norms, by module and name."""
    return {
        f"{name}.{entry}": getattr(module, entry)
        for name, module in model.named_modules()
        if isinstance(module, FrozenBatchNorm)
        for entry in ("running_mean", "running_var")
    }


def used_statistics(model: nn.Module) -> dict[str, Tensor]:
    """The statistics that the frozen batch norms use, by the ``state_dict`` names of batch norms."""
    norms = {name: module for name, module in model.named_modules() if isinstance(module, FrozenBatchNorm)}
    return {
        f"{name}.{entry}": value
        for name, norm in norms.items()
        for entry, value in (("running_mean", norm.mean), ("running_var", norm.variance))
    }


def whole_state(model: nn.Module) -> dict[str, Tensor]:
    """The entries of a network with the statistics that its frozen batch norms use, as entries of batch norms."""
    return {**model.state_dict(), **used_statistics(model)}


def use_statistics(model: nn.Module, statistics: Mapping[str, Tensor]) -> None:
    """Let the frozen batch norms normalise by these statistics, by the ``state_dict`` names of batch norms; in place."""
    for name, module in model.named_modules():
        if isinstance(module, FrozenBatchNorm):
            module.mean.copy_(statistics[f"{name}.running_mean"])
            module.variance.copy_(statistics[f"{name}.running_var"])


def replace_module(model: nn.Module, name: str, replacement: nn.Module) -> None:
    """Replace the submodule of this name."""
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, replacement)
