"""Two classes that a site has exchanged are seen from sums, all or 95 % of their images, and clean sites are not named."""

import numpy as np
import pytest
import torch

from grandrounds.models.closed_form.exchanged import FEWEST_PATIENTS, exchanged
from grandrounds.models.closed_form.solve import solve
from grandrounds.models.closed_form.sums import class_weights, sums_of
from grandrounds.seeding import numpy_generator

CLASSES, FEATURES, NU = 3, 12, 0.3
SITES = ("Hull", "Leeds", "York", "Ely")
SIZES = {"Hull": 240, "Leeds": 120, "York": 90, "Ely": 150}


def drawn(seed, wrong, share=1.0, apart=0.7):
    """Features and labels of each site, whose device shifts them; ``wrong`` sites exchange the first two classes."""
    generator = numpy_generator("exchanged", seed)
    means = apart * generator.standard_normal((CLASSES, FEATURES))
    sites = {}
    for site, count in SIZES.items():
        labels = generator.choice(CLASSES, count, p=(0.5, 0.3, 0.2))
        features = means[labels] + generator.standard_normal((count, FEATURES)) + generator.standard_normal(FEATURES)
        if site in wrong:
            chosen = (generator.random(count) < share) & (labels < 2)
            labels = np.where(chosen, 1 - labels, labels)
        sites[site] = torch.from_numpy(features), torch.from_numpy(labels)
    return sites


def named(sites, patients=None):
    counts = {site: torch.bincount(labels, minlength=CLASSES) for site, (_, labels) in sites.items()}
    weights = class_weights(sum(counts.values()), 0.5)
    eye = torch.eye(CLASSES, dtype=torch.float64)
    sums = {
        site: sums_of([(features, eye[labels], weights[labels])], FEATURES, CLASSES)
        for site, (features, labels) in sites.items()
    }
    total = sum(list(sums.values())[1:], start=sums[next(iter(sums))])
    heads = {site: solve(total - own, NU) for site, own in sums.items()}
    return exchanged(sums, heads, patients or counts, NU)


@pytest.mark.parametrize("share", [1.0, 0.95])
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("site", SITES)
def test_the_site_and_its_classes_are_named(seed, share, site):
    assert named(drawn(seed, [site], share)) == {site: (0, 1)}


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("apart", [0.0, 0.1, 0.7])
def test_clean_sites_are_not_named_also_where_features_hardly_tell_classes(seed, apart):
    assert named(drawn(seed, [], apart=apart)) == {}


@pytest.mark.parametrize("seed", range(5))
def test_of_three_sites_the_largest_is_named_and_not_those_that_it_misleads(seed):
    sites = {site: own for site, own in drawn(seed, ["Hull"]).items() if site != "Ely"}
    assert named(sites) == {"Hull": (0, 1)}


def test_two_sites_are_too_few_and_so_are_few_patients():
    sites = drawn(0, ["Hull"])
    assert named({site: sites[site] for site in ("Hull", "Leeds")}) == {}
    few = {site: torch.full((CLASSES,), FEWEST_PATIENTS) for site in SITES}
    assert named(sites, few) == {"Hull": (0, 1)}
    assert named(sites, {**few, "Hull": few["Hull"] - 1}) == {}


@pytest.mark.parametrize("elsewhere", [0, 1, 3, 6, 12])
@pytest.mark.parametrize("seed", range(5))
def test_a_grade_that_is_at_a_site_almost_alone_is_not_exchanged(seed, elsewhere):
    """The others' head does not know the highest of three grades on a line."""
    generator = numpy_generator("grades", seed)
    line = generator.standard_normal(FEATURES)
    sites = {}
    for site, counts in {"Hull": (60, 60, 60), "Leeds": (100, 60, 0), "York": (100, 60, elsewhere)}.items():
        labels = np.repeat(np.arange(CLASSES), counts)
        features = 2 * labels[:, None] * line / np.linalg.norm(line) + generator.standard_normal(
            (len(labels), FEATURES)
        )
        sites[site] = torch.from_numpy(features), torch.from_numpy(labels)
    assert named(sites) == {}
