"""Export of a run's model: safetensors with a model card, and a MONAI bundle.

The card (Mitchell et al., "Model Cards for Model Reporting", FAT* 2019) says what the model was trained on, how good it was
at which sites, and what it must not be used for. The bundle has MONAI's layout (``configs/``, ``models/``, ``scripts/``,
``docs/``) and runs with MONAI's commands where this package is not installed. The card lies in ``docs/``, of which MONAI
evaluates no text.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor, nn

import grandrounds
from grandrounds import __version__
from grandrounds.data.images.sizing import SIZINGS
from grandrounds.errors import ConfigurationError, GrandRoundsError
from grandrounds.files import read_json_object, write_bytes, write_json
from grandrounds.folders import written_together
from grandrounds.models.depths import AnsweringNetwork, RiskNetwork, depth_head
from grandrounds.models.inference.portable import OUTPUTS, PORTABLE_FILES, write_portable
from grandrounds.models.inference.tracing import script_bytes
from grandrounds.models.registry import architecture_fingerprint, chosen_intensities
from grandrounds.models.trained import load_trained
from grandrounds.plain import to_plain
from grandrounds.protocol.problem import DEPTHS, SITE_NORM, ModelSpec, Problem
from grandrounds.reporting.external.prediction import SUMS_FILE, PortableSums
from grandrounds.reporting.external.result import ExternalResult
from grandrounds.reporting.model import Report
from grandrounds.reporting.population import population_json, settings_of
from grandrounds.reporting.run import ReadRun, RunScores
from grandrounds.reporting.runs import site_data_of
from grandrounds.reporting.tables import SCORE_NAMES, format_estimate, format_number, plain_markdown, pluralize

VERSION = "0.1.0"
SCHEMA = "https://github.com/Project-MONAI/MONAI-extra-test-data/releases/download/0.8.1/meta_schema_20240725.json"
_INTERPRETED = frozenset("$%@#")


def configs(problem: Problem, card: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The configurations by the names of their files."""
    return {
        "inference": _inference(problem),
        "evaluate": _template("evaluate") | {"classes": _literal(list(problem.classes))},
        "metadata": _literal(_metadata(problem, card)),
    }


def _literal(value: Any) -> Any:
    """A value of a configuration of which MONAI evaluates no text."""
    if isinstance(value, Mapping):
        return {key: _literal(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_literal(entry) for entry in value]
    return literal_text(value) if isinstance(value, str) else value


def literal_text(text: str) -> str:
    """What MONAI's ``ConfigParser`` takes as this text, whatever is in it.

    A text that begins with ``$`` is an expression to it, ``%`` a file, ``@`` a reference, and ``#`` separates identifiers.
    A text with one of them becomes the expression of a Python literal that has none.
    """
    if not _INTERPRETED.intersection(text):
        return text
    return "$" + "".join(f"\\x{ord(sign):02x}" if sign in _INTERPRETED else sign for sign in ascii(text))


def _template(name: str) -> dict[str, Any]:
    """What a configuration has whatever the run, from its file in ``bundle``."""
    return read_json_object(Path(__file__).with_name("bundle") / f"{name}.json")


def _inference(problem: Problem) -> dict[str, Any]:
    content = _template("inference")
    content["decoder"] |= {
        "size": problem.image_size,
        "channels": problem.channels,
        "preprocessing": problem.preprocessing,
    }
    content["postprocessing"][problem.kind.activation] = True
    return content


def _metadata(problem: Problem, card: Mapping[str, Any]) -> dict[str, Any]:
    size = [problem.image_size, problem.image_size]
    image = {"type": "image", "format": "magnitude", "modality": "n/a", "spatial_shape": size, "value_range": [0, 1]}
    image |= _channels(("grey",) if problem.channels == 1 else ("red", "green", "blue"))
    output = {"type": "probabilities", "format": "classes", "spatial_shape": [], "value_range": []}
    output |= _channels(problem.classes)
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "changelog": {VERSION: "exported from a run"},
        "monai_version": version("monai"),
        "pytorch_version": torch.__version__.partition("+")[0],
        "numpy_version": numpy.__version__,
        "required_packages_version": {name: version(name) for name in ("pillow", "pydicom")},
        "task": f"{problem.kind.activity} {pluralize(len(problem.classes), problem.kind.noun)}",
        "description": f"{problem.backbone} trained by {card['training']['method']} at {card['data']['sites']} sites",
        "authors": "not stated",
        "copyright": "not stated",
        "data_source": problem.dataset,
        "data_type": "image",
        "intended_use": card["intended_use"],
        "network_data_format": {"inputs": {"image": image}, "outputs": {"pred": output}},
    }


def _channels(names: Sequence[str]) -> dict[str, Any]:
    definition = {str(number): name for number, name in enumerate(names)}
    return {"num_channels": len(names), "dtype": "float32", "is_patch_data": False, "channel_def": definition}


WEIGHTS, CARD, BUNDLE = "model.safetensors", "model_card.json", "bundle"
NOT_STATED = "not stated: ask the sites before the model is passed on"
INTENDED = (
    "Research on federated training. Not a medical device: it has not been tested on other hospitals, devices or patients "
    "than those named here."
)
README_OF_MODEL = Path(__file__).with_name("templates") / "model.md"
OF_SITE = (
    " Its batch norm has the statistics of images of {site}: it is for this site's devices. The scores of other sites are "
    "of models with their statistics, and no privacy budget covers the statistics."
)


def named_shares(counts: Mapping[str, int], named: Mapping[str, float]) -> dict[str, float]:
    """The share of each class where some are named; the others have the rest, divided as the training images are.

    Args:
        counts: training images by class.
        named: shares by class, each above 0 and below 1.

    Raises:
        ConfigurationError: if a class is unknown or has no training image, or the shares do not add up.

    Example:
        >>> named_shares({"melanoma": 20, "nevus": 60, "wart": 20}, {"melanoma": 0.04})
        {'melanoma': 0.04, 'nevus': 0.72, 'wart': 0.24}
    """
    for name, share in named.items():
        if not counts.get(name):
            known = ", ".join(known for known, count in counts.items() if count)
            raise ConfigurationError(f"prevalence of {name!r}: no training image has this class; name one of {known}")
        if not 0 < share < 1:
            raise ConfigurationError(f"prevalence of {name!r}: expected a number above 0 and below 1, got {share}")
    rest = sum(count for name, count in counts.items() if name not in named)
    left = 1 - math.fsum(named.values())
    if (left <= 0) if rest else abs(left) > 1e-6:
        raise ConfigurationError(
            f"prevalence: the shares of {', '.join(named)} add up to {1 - left:g}; with all classes named they add up to 1, "
            "else to less"
        )
    return {name: named.get(name, left * count / rest if rest else 0.0) for name, count in counts.items()}


def shift_of_shares(counts: Sequence[int], shares: Sequence[float]) -> Tensor:
    r"""What is added to logits of risks at the training images' shares for those at others: :math:`\log(\pi'_c / \pi_c)`.

    Source: Saerens, Latinne and Decaestecker, "Adjusting the outputs of a classifier to new a priori probabilities",
    Neural Computation, 2002, equation 2.4. A class without training images stays as it is.

    Example:
        >>> shift_of_shares([50, 50], [0.2, 0.8]).exp()
        tensor([0.4000, 1.6000], dtype=torch.float64)
    """
    before, after = (torch.tensor([*values], dtype=torch.float64) for values in (counts, shares))
    return torch.where(before > 0, (after * before.sum() / before).clamp(min=1e-300).log(), 0.0)


def export_model(
    report: Report,
    folder: Path,
    licence: str | None = None,
    formats: Sequence[str] = (),
    site: tuple[str, Path] | None = None,
    sums: PortableSums | None = None,
    prevalence: tuple[Mapping[str, int], Mapping[str, float]] | None = None,
) -> list[Path]:
    """Write a finished run's selected model with its card, as a MONAI bundle, and in further formats.

    Args:
        report: of the run whose model it is.
        folder: of the files.
        licence: of the data that the model was trained on.
        formats: further ones.
        site: with ``problem.norm=site``, the site for which the model is, and the folder of the run's partition.
        sums: a declared part, in a file of their own.
        prevalence: training images by class of a head in closed form, and the shares that its risks are to be at, where some
            are named, see :func:`named_shares`.

    Returns:
        The files, and the bundle's folder.

    Raises:
        ConfigurationError: if the run has no such model, or its file is of another network.
    """
    run = report.first.run
    if run.origin.weights is None:
        raise ConfigurationError(
            f"{run.name} has no selected model: it is not finished, or every site kept its own; export another run"
        )
    problem = Problem.from_dict(run.log.problem)
    spec = problem.model_spec(pretrained=False)
    images = None
    if site:
        if spec.norm != SITE_NORM:
            raise ConfigurationError(
                f"the model of {run.name} is one for all sites (problem.norm={spec.norm}): leave out --site"
            )
        data = site_data_of(problem, *site)
        images = data.images, data.rows("train")
    network = load_trained(spec, run.origin.weights, run.log.seed, images)
    if prevalence:
        counts, shares = prevalence[0], named_shares(*prevalence)
        moved = [(counts[name], shares[name]) for name in problem.classes]
        depth_head(network).risk[1] += shift_of_shares(*zip(*moved, strict=True))
    state = network.state_dict()
    # The state has all weights; their path would name a folder of the server.
    spec = replace(spec.as_whole(), weights=None, load_weights=False, intensities=chosen_intensities(spec))
    content = _safetensors(state, run)
    digest = hashlib.sha256(content).hexdigest()
    card = model_card(report, spec, state, licence, digest)
    if prevalence:
        card["risk_shares"] = {"named": dict(prevalence[1]), "other classes": "the rest, as among the training images"}
    if site:
        card["intended_use"] += OF_SITE.format(site=site[0])
    summed = {SUMS_FILE: sums.to_bytes()} if sums else {}
    card["closed_form_sums"] = {
        name: {"sha256": hashlib.sha256(held).hexdigest(), "bytes": len(held)} for name, held in summed.items()
    }
    with written_together(folder, lambda: [*_of_another_model(folder, digest), *({SUMS_FILE} - summed.keys())]) as new:
        for name, held in {WEIGHTS: content, **summed}.items():
            write_bytes(new / name, held)
        write_json(new / CARD, card)
        _write_bundle(new / BUNDLE, problem, network, card, score_sentence(report.first.scores, report.metric))
        answering = AnsweringNetwork(network, bool(problem.test_view), problem.kind)
        more = [write_portable(answering, problem, form, new).name for form in formats]
    return [folder / name for name in (WEIGHTS, CARD, BUNDLE, *more, *summed)]


def _of_another_model(folder: Path, digest: str) -> list[str]:
    """The further formats in a folder if its card is of other weights."""
    try:
        known = read_json_object(folder / CARD)["weights"]["sha256"] if (folder / CARD).is_file() else digest
    except (GrandRoundsError, LookupError, TypeError):  # a card of someone else
        known = digest
    return list(PORTABLE_FILES.values()) if known != digest else []


def model_card(
    report: Report, spec: ModelSpec, state: Mapping[str, Tensor], licence: str | None, digest: str
) -> dict[str, Any]:
    """The model card as plain values, with the licence of the training data and the SHA-256 of the weights' file."""
    run, scores = report.first.run, report.first.scores
    problem = Problem.from_dict(run.log.problem)
    return {
        "name": run.name,
        "intended_use": INTENDED,
        "weights": {
            "sha256": digest,
            "architecture_fingerprint": architecture_fingerprint(state),
            "parameters": sum(value.numel() for value in state.values() if value.is_floating_point()),
        },
        "architecture": {
            "backbone": spec.backbone,
            "norm": spec.norm,
            "dropout": spec.dropout,
            "dropout_at": spec.dropout_at,
            "head": spec.head,
        },
        "classes": list(run.classes),
        "preprocessing": preprocessing(problem, spec),
        "training": {
            "method": run.log.method,
            "seed": run.log.seed,
            "rounds": run.log.rounds_done,
            "selected": dict(run.log.selected),
            "bytes": run.log.traffic._asdict(),
            "trained": {"layers": problem.trainable, "norm": problem.norm},
            "averaged_view": problem.test_view,
            "frozen_sha256": run.log.configuration.get("frozen"),
            "initial_weights": {None: "random", "imagenet": "imagenet"}.get(problem.weights or None, "file"),
            "started": run.log.started,
            "settings": dict(settings_of(run)),
        },
        "data": {
            "data_set": problem.dataset,
            "licence": licence or NOT_STATED,
            "sites": len(run.log.sites),
            "communities": sorted(set(run.origin.communities.values())),
            "rounds_by_site": dict(run.log.contributions),
            "image_moments": dict(run.log.image_moments),
            **population_json(run),
        },
        "metrics": {
            "case": run.tests.unit,
            "mean_over_sites": to_plain(scores.mean),
            "pooled": to_plain(scores.pooled),
            "reference": run.origin.reference,
        },
        "external_validation": [_external(place) for place in report.places],
        "privacy": [
            {"site": spent.site, "protects": spent.protects, "epsilon": spent.epsilon, "delta": spent.delta}
            for spent in run.origin.spent
        ],
        "caveats": list(report.first.caveats),
        "versions": {**run.log.versions, "exported_by": __version__},
    }


def _external(place: ExternalResult) -> dict[str, Any]:
    """What the card keeps of an external evaluation: counts, scores and caveats, without its curves."""
    content = place.to_json()
    kept = {name: content[name] for name in ("place", "date", "images", "cases", "classes", "caveats")}
    group = {
        name: getattr(place.group, name) for name in ("positive", "auroc", "operating", "calibration") if place.group
    }
    return {**kept, "pooled": to_plain(place.scores.pooled.scores if place.scores.pooled else {}), **to_plain(group)}


def preprocessing(problem: Problem, spec: ModelSpec) -> dict[str, Any]:
    """How an image is prepared for the model."""
    kind = problem.kind
    return {
        "channels": problem.channels,
        "size": [problem.image_size, problem.image_size],
        "resize": SIZINGS[problem.preprocessing].meaning,
        "intensity": f"8 bit, divided by 255; normalised within the network: {spec.intensities}",
        "intensities": spec.intensities,
        "layout": "batch, channels, height, width; float32 in [0, 1]",
        "output": f"of model.safetensors: logits of decisions; {kind.activation} gives a probability of each {kind.noun}, "
        f"in the order of the {kind.nouns}. Of ONNX and TorchScript: risk, at the shares of the training images "
        "or risk_shares, and decision, of which the predicted label is made",
    }


def _safetensors(state: Mapping[str, Tensor], run: ReadRun) -> bytes:
    from safetensors.torch import save

    # Keys of the header are text; what a reader needs to use the output is enough here, the rest is in the card.
    header = {"format": "pt", "classes": json.dumps(list(run.classes)), "card": CARD}
    saved = bytes(save({name: value.contiguous().clone() for name, value in state.items()}, header))
    # The library writes these in an order of chance; the same model is to give the same bytes, and the same digest.
    start = 8 + int.from_bytes(saved[:8], "little")
    content = json.dumps({**json.loads(saved[8:start]), "__metadata__": header}, separators=(",", ":")).encode()
    content += b" " * (-len(content) % 8)
    return len(content).to_bytes(8, "little") + content + saved[start:]


def _write_bundle(folder: Path, problem: Problem, network: nn.Module, card: Mapping[str, Any], score: str) -> None:
    contents = configs(problem, card)
    for name, content in contents.items():
        write_json(folder / "configs" / f"{name}.json", content)
    _write_scripts(folder / "scripts")
    write_json(folder / "docs" / CARD, card)
    is_own = not problem.test_view and problem.head != DEPTHS  # then the names of entries are the network's
    risks, models = network if is_own else RiskNetwork(network, bool(problem.test_view)), folder / "models"
    script = torch.jit.load(write_portable(risks, problem, "torchscript", models, OUTPUTS[:1]))  # type: ignore[no-untyped-call]
    weights = io.BytesIO()  # torch would hide that a disk is full
    torch.save(script.state_dict(), weights)
    whole = script_bytes(script, {"metadata.json": json.dumps(contents["metadata"])})
    for file, saved in (("model.pt", weights.getvalue()), ("model.ts", whole)):
        write_bytes(folder / "models" / file, saved)
    write_bytes(folder / "docs" / "README.md", _readme(card, score).encode())


def score_sentence(scores: RunScores, metric: str) -> str:
    """The first score of all test images together beside its references, then the mean over sites."""
    pooled = scores.pooled
    values = {
        "all sites' test images together": pooled.best(metric) if pooled else None,
        "mean over sites": scores.best_mean(metric),
    }
    known = [f"{name} {format_estimate(score)}" for name, score in values.items() if score and score.known]
    references = pooled.references if pooled else {}
    beside = [f"{name} {format_number(one[metric])}" for name, one in references.items() if metric in one]
    name = SCORE_NAMES[metric]
    text = "; ".join([*known, *beside]) if known else "no test, or too few test cases"
    return f"{name[0].upper()}{name[1:]}: {text}."


def _readme(card: Mapping[str, Any], score: str) -> str:
    caveats = (
        "".join(f"- {plain_markdown(caveat)}\n" for caveat in card["caveats"])
        or "- none beyond those of any single run\n"
    )
    return README_OF_MODEL.read_text(encoding="utf-8").format(
        name=plain_markdown(card["name"]),
        intended_use=plain_markdown(card["intended_use"]),
        classes=", ".join(map(plain_markdown, card["classes"])),
        score=plain_markdown(score),
        licence=plain_markdown(card["data"]["licence"]),
        caveats=caveats,
    )


_IMPORT = re.compile(r"^( *)from grandrounds(?:\.\w+)*\.(\w+) import", re.MULTILINE)
_MODULE = re.compile(r"^ *from grandrounds\.([\w.]+) import", re.MULTILINE)
_FIRST = "reporting.bundle.images"


def _write_scripts(folder: Path) -> None:
    """Write ``images.py`` and each module that it imports, side by side, as a package."""
    root, waiting, known = Path(grandrounds.__file__).parent, [_FIRST], {_FIRST}
    origin = f"# Of grandrounds {grandrounds.__version__}, licence Apache-2.0.\n"
    write_bytes(folder / "__init__.py", origin.encode())
    while waiting:
        source = root.joinpath(*waiting.pop().split(".")).with_suffix(".py")
        text = source.read_text(encoding="utf-8")
        imported = set(_MODULE.findall(text)) - known
        known |= imported
        waiting += imported
        write_bytes(folder / source.name, (origin + _IMPORT.sub(r"\1from .\2 import", text)).encode())
