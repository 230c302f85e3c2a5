"""A site leaves a finished run: the head of the other sites' sums, which the server has kept, in a new run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grandrounds.errors import ConfigurationError
from grandrounds.federation.checkpoints import PARTS_FOLDER, read_saved, save_models
from grandrounds.federation.server.record import SUMMARY
from grandrounds.files import read_json_object, write_json
from grandrounds.methods.ridge.bounds import used_shares
from grandrounds.methods.ridge.phases import CLASS_COUNTS, LEAVING, PHASES, SUMS
from grandrounds.models.closed_form.leaving_out import best_penalty
from grandrounds.models.closed_form.solve import risk_offset, risk_terms, solve, standardised
from grandrounds.models.closed_form.sums import Sums, class_weights
from grandrounds.models.depths import DepthHead
from grandrounds.ordering import natural_sorted
from grandrounds.protocol.messages import GLOBAL, State
from grandrounds.protocol.names import SERVER, VALIDATION
from grandrounds.protocol.problem import Problem
from grandrounds.protocol.task import Task

METHOD = "RidgeController"


@dataclass(frozen=True)
class Departure:
    """What a run without some of its sites is.

    Attributes:
        sites: that have left.
        stayed: the others.
        penalty: chosen again, by the errors at the sites that stayed; where validation images chose it, that of the run.
        temperature: of the run that they have left.
        exact: whether the head is that of training without them; else its class weights are those of all sites.
        class_counts: training images of the sites that stayed by class, within the bounds of the run.
    """

    sites: tuple[str, ...]
    stayed: tuple[str, ...]
    penalty: float
    temperature: float
    exact: bool
    class_counts: Mapping[str, int]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        weights = "of the sites that stayed" if self.exact else "old: of all sites"
        of_sums = {"penalty": self.penalty, "class_counts": dict(self.class_counts)}
        return {"sites": list(self.sites), **of_sums, "class_weights": weights}


def leave(run: Path, sites: Sequence[str], out: Path) -> Departure:
    """Write the run without these sites; no site takes part in this.

    Args:
        run: the workspace of a simulation, or the run's folder at the server, with its checkpoints.
        sites: that leave.
        out: a folder that does not exist or is empty.

    Raises:
        ConfigurationError: if the run is no finished one of ridge regression on plain sums, its sums were not kept, it has
            no such site, no site with labels stays, or the folder is in use.
    """
    if out.exists() and any(out.iterdir()):
        raise ConfigurationError(f"{out} is not empty; name another folder with --out")
    summary, method, kept = kept_sums(run)
    if LEAVING in summary.get("void", ()):
        raise ConfigurationError(
            f"{run} is of secure sums, which nobody can leave: the difference of its sums and those without "
            f"{', '.join(sites)} would show the sums that were hidden"
        )
    if SUMS in kept:
        raise ConfigurationError(
            f"{run}: the server has kept only the sum over all sites; run the job without the site"
        )
    if unknown := [site for site in sites if site not in kept]:
        raise ConfigurationError(
            f"{run} has no sums of {unknown[0]}; it has those of {', '.join(natural_sorted(kept))}"
        )
    stayed = {site: kept[site] for site in natural_sorted(kept) if site not in sites}
    if not any(sums.weight > 0 for sums in stayed.values()):
        raise ConfigurationError(f"{run}: without {', '.join(sites)} no site with a labelled image stays")
    configuration, state = summary["configuration"], method[GLOBAL]
    model, penalty, temperature = _solved(list(stayed.values()), summary, state)
    exact = configuration["class_balance"] == 0
    numbers = used_counts(method[CLASS_COUNTS], configuration["weight_multiple"], stayed).round().long().tolist()
    counts = dict(zip(configuration["problem"]["classes"], numbers, strict=True))
    departure = Departure(tuple(sites), tuple(stayed), penalty, temperature, exact, counts)
    _write(out, summary, model, departure)
    return departure


def kept_sums(run: Path) -> tuple[dict[str, Any], dict[str, Any], dict[str, Sums]]:
    """What the server has kept of a finished run of ridge regression on plain sums.

    Args:
        run: the workspace of a simulation, or the run's folder at the server.

    Returns:
        The run's summary, the state of its controller at the end, and the sums of each site; of many their total alone,
        under the name ``SUMS``.

    Raises:
        ConfigurationError: if the run is none of these, or the sums are not there.
    """
    folder = _server_folder(run)
    summary = read_json_object(folder / SUMMARY)
    _require_ridge(summary, folder)
    saved = read_saved(max(folder.glob("round_*.pt"), default=folder / f"round_{len(PHASES):05d}.pt"))
    parts = folder / PARTS_FOLDER
    kept = {name: read_saved(parts / f"{name}@{number:05d}.pt") for name, number in saved["parts"].items()}
    return summary, saved["content"]["method"], {name: Sums.unpacked(packed) for name, packed in kept.items()}


def _server_folder(run: Path) -> Path:
    records = [folder for folder in (run, *sorted(run.glob(f"state/*/{SERVER}"))) if (folder / SUMMARY).is_file()]
    folders = [folder for folder in records if (folder / PARTS_FOLDER).is_dir()]
    if len(folders) != 1:
        what = "several runs" if folders else "no sums that the server has kept"
        raise ConfigurationError(f"{run} has {what}; name a simulation's workspace, or the run's folder at the server")
    return folders[0]


def _require_ridge(summary: Mapping[str, Any], folder: Path) -> None:
    method = summary["configuration"].get("method")
    if method != METHOD:
        raise ConfigurationError(f"{folder}: a site can leave a run of ridge, this one is of {method}")
    if summary["status"] != "finished":
        raise ConfigurationError(f"{folder}: the run has not finished; start it again first")


def notes_of(summary: Mapping[str, Any]) -> dict[str, Any]:
    """What a run has noted in all its rounds, or at a departure: counts, penalty, views and temperature."""
    noted = {name: value for entry in summary["rounds"] for name, value in entry.get("ridge", {}).items()}
    return {**noted, **summary.get("left", {})}


def used_counts(counts: Mapping[str, Tensor], multiple: float | None, sites: Iterable[str]) -> Tensor:
    """Images of some sites by class, within their bounds.

    Args:
        counts: of all sites of the run, each of shape ``(classes,)``.
        multiple: of the median number of a site, see :func:`used_shares`.
        sites: that are added up.
    """
    shares = used_shares({site: float(one.sum()) for site, one in counts.items()}, multiple)
    return torch.stack([counts[site].double() * shares[site] for site in sites]).sum(dim=0)


def _solved(sites: Sequence[Sums], summary: Mapping[str, Any], state: State) -> tuple[dict[str, Tensor], float, float]:
    """The model with the head of these sites, the penalty, and the temperature, which stays."""
    total, options = sum(sites[1:], start=sites[0]), summary["configuration"]
    by_validation = options.get("penalty_rule") == VALIDATION
    penalty = notes_of(summary)["penalty"] if by_validation else best_penalty(sites, options["penalties"])[0]
    kind = Problem.from_dict(options["problem"]).kind
    prefix = next(name for name in state if name.endswith("linear.weight")).removesuffix("linear.weight")
    own = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
    numbers = torch.tensor([*notes_of(summary)["class_counts"].values()])
    weights = class_weights(numbers, options["class_balance"])
    head = head_of_sums(own, total, solve(total, penalty), kind, options["prior_correction"], weights)
    return {**state, **{prefix + name: value for name, value in head.items()}}, penalty, float(head["temperature"])


def head_of_sums(own: State, sums: Sums, solved: Tensor, kind: Task, correction: float, class_weights: Tensor) -> State:
    """The state of a head that is solved from other sums, at the temperatures of a head.

    Args:
        own: state of the head.
        sums: of labelled images.
        solved: from these, see :func:`solve`.
        kind: what labels are.
        correction: how far the classes' shares are taken out of the scores, see :meth:`Task.centre_and_offset`.
        class_weights: of images in the sums, shape ``(classes,)``.
    """
    classes, features = own["linear.weight"].shape
    head = DepthHead(features, classes, 0.0)
    head.load_state_dict(own)
    temperature, shares = float(head.temperature), sums.targets[-1] / sums.weight
    centre, offset = kind.centre_and_offset(shares, correction)
    weights, bias, shift, scale = standardised(solved, sums)
    of_risks = temperature * float(head.risk[0, 0])
    risk = risk_terms(offset, temperature, risk_offset(kind, shares, class_weights), of_risks)
    head.set_linear(weights, bias + offset / temperature - centre, shift, scale, temperature, risk)
    return head.state_dict()


def _write(folder: Path, summary: Mapping[str, Any], model: State, departure: Departure) -> None:
    """Write models and a summary without scores, because nobody has tested the new head."""
    folder.mkdir(parents=True, exist_ok=True)
    names = save_models(folder, {"selected": model, "last": model})
    digests = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}
    of_sites = {
        name: {site: value for site, value in summary[name].items() if site in departure.stayed}
        for name in ("contributions", "registered", "bytes", "privacy")
    }
    unknown: dict[str, Any] = {"records": {}, "own_rounds": {}, "rounds": [], "checkpoints": []}
    selected = {"round": len(PHASES)}
    changes = {"selected": selected, "models": digests, "untested": list(departure.stayed), "left": departure.to_json()}
    write_json(folder / SUMMARY, {**summary, **of_sites, **unknown, **changes})
