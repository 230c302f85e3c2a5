"""The control by whitening of the benchmark between three devices."""

import numpy as np
import pytest
import torch

from benchmarks.fed_align_devices import whitening
from benchmarks.fed_align_devices.whitening import FEATURES, SiteImages, Whitened


def _site(seed: int, shift: float, images: int = 200) -> SiteImages:
    """A site whose device adds to the first features; half of the images are malignant, which the next ones show."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(images) % 2
    embeddings = torch.randn(images, FEATURES, generator=generator)
    embeddings[:, :40] += shift
    embeddings[:, 40:80] += labels[:, None]
    lesions = np.array([f"{seed}-{image}" for image in range(images)])
    return SiteImages(embeddings, labels, lesions, np.arange(0, images // 2), np.arange(images // 2, images))


def test_whitened_features_have_no_mean_and_the_identity_as_covariance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whitening, "RIDGE", 0.0)
    inputs = torch.randn(300, FEATURES, generator=torch.Generator().manual_seed(1)) @ torch.diag(
        torch.linspace(0.1, 3, FEATURES)
    )
    network = Whitened().eval()
    network.take(inputs)
    embedded = network.embed(inputs).detach()
    assert torch.allclose(embedded.mean(0), torch.zeros(whitening.WIDTH), atol=1e-4)
    assert torch.allclose(torch.cov(embedded.T), torch.eye(whitening.WIDTH), atol=1e-3)


def test_own_moments_hide_a_device_that_moments_of_all_images_show() -> None:
    sites = [_site(1, 0.0), _site(2, 3.0)]
    probes = {}
    for form in ("all", "own"):
        found = whitening._scores(sites, *whitening._trained(sites, form, seed=1), form)
        probes[form] = found["probe"]
        assert min(found["auc"]) > 0.9
    assert probes["all"] > 0.95
    assert probes["own"] < 0.7


def test_forms_with_one_site_are_the_same_network() -> None:
    sites = [_site(1, 0.0)]
    own, pooled = (whitening._trained(sites, form, seed=1)[0].state_dict() for form in ("own", "all"))
    assert all(torch.equal(value, pooled[name]) for name, value in own.items())
