"""The silhouette weighs hospitals equally, and a plane keeps neighbours together."""

import math

import numpy as np
import pytest
from sklearn.metrics import silhouette_score

from benchmarks.fed_align_cl_ham10000.embeddings import plane_of, site_silhouette
from grandrounds.seeding import numpy_generator

SITES = np.repeat(["a", "b", "c"], 60)


def hospitals(shift: float) -> np.ndarray:
    generator = numpy_generator("hospitals")
    centres = np.repeat(np.eye(3) * shift, 60, axis=0)
    return generator.normal(size=(180, 3)) + centres


def test_the_silhouette_of_equal_hospitals_is_scikit_learns():
    assert site_silhouette(hospitals(2), SITES) == pytest.approx(silhouette_score(hospitals(2), SITES))
    assert site_silhouette(hospitals(50), SITES) > 0.9
    assert abs(site_silhouette(hospitals(0), SITES)) < 0.05


def test_every_hospital_weighs_the_same_in_the_silhouette():
    line = np.array([[0.0], [0.1], [0.2], [0.3], [10.0], [30.0]])
    sites = np.array(["a"] * 4 + ["b"] * 2)
    # The two of b are 20 apart and 9.85 and 29.85 from a: (9.85 - 20) / 20 and (29.85 - 20) / 29.85.
    of_b = ((9.85 - 20) / 20 + (29.85 - 20) / 29.85) / 2
    from sklearn.metrics import silhouette_samples

    assert silhouette_samples(line, sites)[4:].mean() == pytest.approx(of_b)
    assert site_silhouette(line, sites) == pytest.approx((silhouette_samples(line, sites)[:4].mean() + of_b) / 2)
    assert math.isnan(site_silhouette(line[:2], np.array(["a", "b"])))


def test_a_plane_keeps_neighbours_together_and_repeats():
    plane = plane_of(hospitals(20), seed=1)
    assert plane.shape == (180, 2)
    assert site_silhouette(plane, SITES) > 0.5
    assert np.array_equal(plane, plane_of(hospitals(20), seed=1))


@pytest.mark.parametrize(
    ("embeddings", "sites", "message"),
    [
        (np.zeros((3, 2)), np.array(["a", "b"]), "with a row for each of 2 sites"),
        (np.array([[0.0], [math.nan]]), np.array(["a", "b"]), "row 1 of the embeddings is not finite"),
        (np.zeros((2, 2)), np.array(["a", "a"]), "sites must be at least two"),
    ],
)
def test_embeddings_that_do_not_fit_are_refused(embeddings, sites, message):
    with pytest.raises(ValueError, match=message):
        site_silhouette(embeddings, sites)


def test_too_few_images_for_a_plane_are_refused():
    with pytest.raises(ValueError, match=r"with more than 30 images, got \(30, 2\)"):
        plane_of(np.zeros((30, 2)), seed=1)
