"""The probe recognises separated hospitals, guesses where they are mixed, and is not fooled by patients in two folds."""

import math

import numpy as np
import pytest

from benchmarks.fed_align_cl_ham10000.domain_probe import site_probe
from grandrounds.seeding import numpy_generator

SITES = np.repeat(["a", "b", "c"], 60)


def hospitals(shift: float) -> np.ndarray:
    generator = numpy_generator("hospitals")
    centres = np.repeat(np.eye(3) * shift, 60, axis=0)
    return generator.normal(size=(180, 3)) + centres


def test_separated_hospitals_are_found_and_mixed_ones_are_guessed():
    apart, mixed = site_probe(hospitals(20), SITES, seed=1), site_probe(hospitals(0), SITES, seed=1)
    assert apart == (1.0, pytest.approx(1 / 3))
    assert mixed.accuracy == pytest.approx(1 / 3, abs=0.1)


def test_a_large_hospital_does_not_make_guessing_look_good():
    sites = np.array(["a"] * 170 + ["b"] * 10)
    found = site_probe(hospitals(0), sites, seed=1)
    assert found.chance == 0.5
    assert found.accuracy < 0.7


def test_images_of_one_patient_are_in_one_fold():
    generator = numpy_generator("patients")
    # Each patient has its own signature, which does not depend on the hospital.
    patients = np.repeat(np.arange(30), 6)
    embeddings = np.repeat(generator.normal(size=(30, 40)), 6, axis=0) + 0.01 * generator.normal(size=(180, 40))
    assert site_probe(embeddings, SITES, seed=1).accuracy > 0.9
    assert site_probe(embeddings, SITES, seed=1, groups=patients).accuracy < 0.65


def test_the_seed_repeats_the_folds():
    assert site_probe(hospitals(1), SITES, seed=3) == site_probe(hospitals(1), SITES, seed=3)


def test_too_few_patients_of_a_hospital_are_no_number():
    assert math.isnan(site_probe(hospitals(1), SITES, seed=1, groups=np.repeat(np.arange(3), 60)).accuracy)


def test_one_hospital_is_refused():
    with pytest.raises(ValueError, match="sites must be at least two"):
        site_probe(np.zeros((2, 2)), np.array(["a", "a"]), seed=1)
