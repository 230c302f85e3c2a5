"""Which network a site trains: the job's, or where sites have models of their own the one chosen for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from grandrounds.data.site_model import SiteModel
from grandrounds.errors import ConfigurationError
from grandrounds.federation.problem import Problem
from grandrounds.models.registry import ModelSpec, minimum_image_size


def require_backbones(backbones: Mapping[str, str], own: bool) -> None:
    """Check a job's table of backbones by site.

    Args:
        backbones: names of the registry by site; empty where all have the problem's.
        own: whether sites have models of their own.

    Raises:
        ConfigurationError: if a name is unknown, or sites share a model.
    """
    if backbones and not own:
        raise ConfigurationError("backbones gives sites networks of their own, which needs model=own")
    for site, backbone in backbones.items():
        try:
            minimum_image_size(backbone)
        except ConfigurationError as error:
            raise ConfigurationError(f"backbones: {site}: {error}") from error


def own_model_spec(
    problem: Problem, site: str, own: bool, backbones: Mapping[str, str], chosen: SiteModel | None
) -> ModelSpec | None:
    """The network that a site has for itself.

    Args:
        problem: what is learnt, with the network of those that choose nothing.
        site: the site's name.
        own: whether sites have models of their own.
        backbones: the job's choice by site.
        chosen: the site's own choice, which overrides the job's.

    Returns:
        The network; None if it is the problem's.

    Raises:
        ConfigurationError: naming the file or the option, if the choice does not exist, does not fit the problem's images,
            or differs where all sites share one model.
    """
    shared = problem.model_spec(pretrained=False)
    spec, where = shared, f"executor.backbones: {site}"
    if own and site in backbones:
        spec = _changed(spec, {"backbone": backbones[site]}, where)
    if chosen is not None:
        where = chosen.where
        spec = _changed(spec, chosen.changes, where)
    if spec == shared:
        return None
    if not own:
        raise ConfigurationError(
            f"{where} asks for {_described(spec)}, but all sites of this job share one model, {_described(shared)}; remove "
            "the entry, or run a job with model=own"
        )
    least = minimum_image_size(spec.backbone)
    if problem.image_size < least:
        raise ConfigurationError(
            f"{where}: backbone {spec.backbone} needs images of at least {least} pixels, the job's problem.image_size is "
            f"{problem.image_size}; choose a smaller backbone"
        )
    return spec


def _changed(spec: ModelSpec, changes: Mapping[str, Any], where: str) -> ModelSpec:
    try:
        return replace(spec, **changes)
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from error


def _described(spec: ModelSpec) -> str:
    start = "" if spec.weights is None else ", weights of its own"
    return f"{spec.backbone} (norm {spec.norm}, dropout {'its own' if spec.dropout is None else spec.dropout}{start})"
