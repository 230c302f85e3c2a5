"""Noise by a filter of a job, beside the site's gate."""

from __future__ import annotations

from nvflare.apis.dxo import DataKind, from_shareable
from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable

from grandrounds.errors import ConfigurationError
from grandrounds.privacy.gate.kinds import KINDS
from grandrounds.privacy.gate.treatments import ClipAndNoise, RunningStatistics
from grandrounds.protocol.messages import TREATED
from grandrounds.protocol.spending import Unit, update_sensitivity

CLIPPED_KINDS = frozenset(kind for kind, known in KINDS.items() if ClipAndNoise in known.treatments)


class GaussianPrivacy(Filter):
    """Clips updates and adds noise as a filter of a job, for experiments: without ledger and budget.

    An update that the site's gate has already treated passes unchanged, so that noise is not added twice.

    ``noise_multiplier`` is the noise's standard deviation over the sensitivity that follows from ``clip`` and ``unit``; for
    ``running_statistics`` see :class:`~grandrounds.privacy.gate.treatments.ClipAndNoise`.

    Raises:
        ConfigurationError: if a value is outside its range.
    """

    def __init__(
        self, clip: float, noise_multiplier: float, unit: str = "site", running_statistics: RunningStatistics = "refuse"
    ) -> None:
        super().__init__()
        if unit not in list(Unit):
            raise ConfigurationError(f"unit must be one of {', '.join(Unit)}, got {unit!r}")
        sigma = noise_multiplier * update_sensitivity(clip, Unit(unit))
        self.treatment = ClipAndNoise(clip, sigma, Unit(unit), running_statistics)

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """FLARE's hook for an answer that goes out.

        Raises:
            ValueError: if an update cannot be treated; FLARE then sends an error and nothing else.
        """
        if shareable.get_return_code() != ReturnCode.OK:
            return shareable
        dxo = from_shareable(shareable)
        if dxo.data_kind != DataKind.COLLECTION:
            raise ValueError(f"the answer must be a collection, got {dxo.data_kind}: its update cannot be found")
        for part in dxo.data.values():
            if part.get_meta_prop("release") in CLIPPED_KINDS and not part.get_meta_prop(TREATED):
                part.data = self.treatment.apply(part.data)
                part.set_meta_prop(TREATED, self.treatment.name)
        return dxo.update_shareable(shareable)
