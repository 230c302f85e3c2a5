"""Which round's model is the run's result: the one that scores best on average over the sites' validation images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grandrounds.errors import ConfigurationError
from grandrounds.ordering import natural_sorted
from grandrounds.protocol.messages import VALIDATION_PREFIX, State


class ModelSelection:
    """Keeps the best model so far.

    Rounds are compared over the same sites: one that has not scored a round counts with its last score, and when a site
    scores for the first time the comparison begins anew, because nobody knows what it would have said before.

    Args:
        metric: name of a validation metric; higher is better.
    """

    def __init__(self, metric: str) -> None:
        self._metric = metric
        self._last: dict[str, float] = {}
        self.choice: dict[str, Any] = {}
        self.model: State | None = None

    def offer(self, model_round: int, metrics: Mapping[str, Mapping[str, float]], model: State | None) -> float | None:
        """Take a scored model, and keep it if none was better (ties go to the later, as in FedPerl).

        Args:
            model_round: the round after which the model was made.
            metrics: of the sites that have answered.
            model: the model, or None where every site has its own.

        Returns:
            The mean score; None when no site has scored.

        Raises:
            ConfigurationError: if a site's metrics lack the one that selects.
        """
        name = VALIDATION_PREFIX + self._metric
        scored = {site: values for site, values in metrics.items() if values.get(VALIDATION_PREFIX + "n", 0) > 0}
        for site, values in scored.items():
            if name not in values:
                prefixed = (key for key in values if key.startswith(VALIDATION_PREFIX))
                offered = ", ".join(sorted(key.removeprefix(VALIDATION_PREFIX) for key in prefixed))
                raise ConfigurationError(
                    f"selection_metric {self._metric!r} is not among the metrics of {site}: {offered}"
                )
            if site not in self._last:
                self.choice = {}
            self._last[site] = values[name]
        if not scored:
            return None
        score = sum(self._last[site] for site in natural_sorted(self._last)) / len(self._last)
        if score >= self.choice.get("score", float("-inf")):
            self.keep(model_round, score, model)
        return score

    def keep(self, model_round: int, score: float | None, model: State | None) -> None:
        """Keep this model, whatever came before."""
        self.choice = {"round": model_round, "metric": None if score is None else self._metric, "score": score}
        self.model = model

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"last": self._last, "choice": self.choice, "model": self.model}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what a checkpoint has kept."""
        self._last, self.choice, self.model = dict(state["last"]), dict(state["choice"]), state["model"]
