"""Sums of two sites and heads of them, by hand, by scikit-learn, and of images that are no ordinary ones."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from grandrounds.models.closed_form.leaving_out import leaving_out
from grandrounds.models.closed_form.received import packed_shapes, wrong_sums
from grandrounds.models.closed_form.solve import feature_variances, solve, solve_grid, squared_error
from grandrounds.models.closed_form.sums import Sums, class_weights, sums_of
from grandrounds.protocol.tasks import FINDINGS, SINGLE

COUNTS = torch.tensor([1, 2])


def sums_of_images(values, labels, beta=0.0):
    """Of images with one feature and two classes."""
    weights = class_weights(COUNTS, beta)
    one = (torch.tensor(values)[:, None], torch.eye(2)[labels], weights[labels])
    return sums_of([one], 1, 2)


def sites(beta=0.0):
    return sums_of_images([1.0, 2.0], [0, 1], beta), sums_of_images([3.0], [1], beta)


def head(sums):
    """With lambda 1."""
    return solve(sums, nu=1 / sums.weight)


def equal(found, expected):
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12)


def test_the_numbers_of_all_images_alike():
    one, two = sites()
    total = one + two
    equal(total.products, [[14, 6], [6, 3]])
    equal(total.targets, [[1, 5], [1, 2]])
    equal(feature_variances(total), [2 / 3])
    equal(head(total), [[-3 / 8, 3 / 8], [13 / 12, -1 / 12]])


def test_the_numbers_without_a_site():
    one, two = sites()
    left = one + two - two
    equal(left.products, [[5, 3], [3, 2]])
    equal(feature_variances(left), [1 / 4])
    equal(head(left), [[-2 / 3, 2 / 3], [3 / 2, -1 / 2]])
    assert squared_error(head(left), two) == pytest.approx(1 / 2, abs=1e-12)


def test_the_numbers_of_balanced_classes():
    one, two = sites(beta=1.0)
    total = one + two
    equal(total.products, [[45 / 4, 21 / 4], [21 / 4, 3]])
    equal(total.targets, [[3 / 2, 15 / 4], [3 / 2, 3 / 2]])
    equal(feature_variances(total), [11 / 16])
    equal(head(total), [[-9 / 22, 9 / 22], [107 / 88, -19 / 88]])
    equal(solve(total - two, 1 / (total - two).weight), [[-9 / 13, 9 / 13], [62 / 39, -23 / 39]])


def drawn(images=40, width=6, classes=3, seed=0):
    numbers = torch.Generator().manual_seed(seed)
    features = torch.randn(images, width, generator=numbers) * torch.arange(1, width + 1)
    labels = torch.randint(classes, (images,), generator=numbers)
    return features, labels


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("images", [4, 40])
def test_the_head_is_that_of_scikit_learn(images, beta):
    features, labels = drawn(images)
    weights = class_weights(torch.bincount(labels, minlength=3), beta)[labels]
    sums = sums_of([(features, torch.eye(3)[labels], weights)], 6, 3)
    found = solve(sums, nu=0.3)
    x, w = features.double().numpy(), weights.numpy()
    mean = np.average(x, axis=0, weights=w)
    deviations = np.sqrt(np.average((x - mean) ** 2, axis=0, weights=w))
    oracle = Ridge(alpha=0.3 * w.sum(), solver="cholesky").fit(x / deviations, np.eye(3)[labels], sample_weight=w)
    np.testing.assert_allclose(found[:-1].numpy(), (oracle.coef_ / deviations).T, atol=1e-9)
    np.testing.assert_allclose(found[-1].numpy(), oracle.intercept_, atol=1e-9)


def test_classes_add_up_to_one_and_an_absent_one_is_zero():
    features, labels = drawn()
    sums = sums_of([(features, torch.eye(4)[labels], torch.ones(40))], 6, 4)
    found = solve(sums, 0.1)
    equal(found.sum(dim=1), [0.0] * 6 + [1.0])
    equal(found[:, 3], [0.0] * 7)


def test_any_division_gives_the_same_scores():
    features, labels = drawn()
    targets, ones = torch.eye(3)[labels], torch.ones(40)
    whole = sums_of([(features, targets, ones)], 6, 3)
    parts = [
        sums_of([(features[part], targets[part], ones[part])], 6, 3)
        for part in (slice(0, 7), slice(7, 8), slice(8, 40))
    ]
    scores = [features.double() @ solve(one, 0.1)[:-1] for one in (whole, parts[0] + parts[1] + parts[2])]
    assert float((scores[0] - scores[1]).abs().max()) < 1e-8


def test_a_constant_feature_has_no_say():
    features, labels = drawn()
    features[:, 2] = 5.0
    targets, ones = torch.eye(3)[labels], torch.ones(40)
    found = solve(sums_of([(features, targets, ones)], 6, 3), 0.1)
    without = solve(sums_of([(features[:, [0, 1, 3, 4, 5]], targets, ones)], 5, 3), 0.1)
    scores = [x.double() @ w[:-1] + w[-1] for x, w in ((features, found), (features[:, [0, 1, 3, 4, 5]], without))]
    torch.testing.assert_close(scores[0], scores[1], rtol=0, atol=1e-9)


def test_the_error_of_sums_is_that_of_images():
    features, labels = drawn()
    weights = class_weights(torch.bincount(labels), 1.0)[labels]
    found = solve(sums_of([(features[:30], torch.eye(3)[labels[:30]], weights[:30])], 6, 3), 0.1)
    rows, held = torch.cat([features.double(), torch.ones(40, 1)], 1)[30:], torch.eye(3).double()[labels[30:]]
    by_image = (weights[30:, None] * (rows @ found - held).square()).sum()
    left_out = sums_of([(features[30:], torch.eye(3)[labels[30:]], weights[30:])], 6, 3)
    assert squared_error(found, left_out) == pytest.approx(float(by_image), rel=1e-9)


def test_left_out_hospitals_choose_the_penalty():
    one, two = sites()
    grid = [0.1, 1 / 2]
    by_hand = [squared_error(solve(one, nu), two) for nu in grid]
    # The head of one image is that image's class for all.
    equal(solve(two, 0.5), [[0.0, 0.0], [0.0, 1.0]])
    expected = [error + 2.0 for error in by_hand]  # of one of two images the class is wrong
    without = Sums(one.products * 0, one.targets * 0)
    for labelled in ([one, two], [one, two, without]):
        assert [left.error for left in leaving_out(labelled, grid)] == pytest.approx(expected, abs=1e-9)


def test_sums_travel_as_a_triangle():
    one, _ = sites()
    packed = one.packed()
    assert {name: tuple(value.shape) for name, value in packed.items()} == packed_shapes(1, 2)
    again = Sums.unpacked(packed)
    assert torch.equal(again.products, one.products)
    assert torch.equal(again.targets, one.targets)


def changed(sums, change):
    products, targets = sums.products.clone(), sums.targets.clone()
    change(products, targets)
    return Sums(products, targets)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda a, b: a.mul_(2), "do not add up"),
        (lambda a, b: a.neg_(), "weights is -2"),
        (lambda a, b: a[0, 0].mul_(100), "squares of its features"),
        (lambda a, b: a[0, 0].sub_(0.6), "not positive semidefinite"),
        (lambda a, b: b[0, 0].add_(1), "do not add up"),
    ],
)
def test_hostile_sums_are_told_apart(change, expected):
    one, _ = sites()
    assert wrong_sums(one, SINGLE, 3.0) == ""
    assert expected in wrong_sums(changed(one, change), SINGLE, 3.0)


def test_findings_cannot_have_more_images_than_there_are():
    one, _ = sites()
    assert wrong_sums(one, FINDINGS, 3.0) == ""
    assert "a finding has more" in wrong_sums(changed(one, lambda a, b: b[-1, 0].add_(9)), FINDINGS, 3.0)


def test_sums_without_images_and_without_a_solution_are_refused():
    empty = Sums(torch.zeros(2, 2, dtype=torch.float64), torch.zeros(2, 2, dtype=torch.float64))
    with pytest.raises(ValueError, match="no image"):
        solve_grid(empty, [1.0])
    with pytest.raises(ValueError, match="at least one labelled"):
        class_weights(torch.zeros(2), 1.0)
