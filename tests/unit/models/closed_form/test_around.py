"""A head near another one against hand-computed numbers, its own equation, and refits without an image."""

import numpy as np
import pytest
import torch

from grandrounds.models.closed_form.around import MU_GRID, solve_added, solve_near
from grandrounds.models.closed_form.sums import sums_of, with_bias
from grandrounds.seeding import numpy_generator


@pytest.fixture
def few():
    """Features and targets of twelve images with more features than images, a start, and variances."""
    generator = torch.Generator().manual_seed(3)
    features = torch.randn(12, 20, generator=generator, dtype=torch.float64)
    targets = torch.eye(3, dtype=torch.float64)[torch.arange(12) % 3]
    start = torch.randn(20, 3, generator=generator, dtype=torch.float64) + 0.5 * features.T @ targets
    return features, targets, start, torch.rand(20, generator=generator, dtype=torch.float64) + 0.5


def test_two_images_give_a_quarter():
    # Around 0 and with mu 2, the centred features -1, 1 and targets 1/2, -1/2: v = -1 / (2 + 2).
    features, targets = torch.tensor([[0.0], [2.0]]).double(), torch.eye(2).double()
    found = solve_near(features, targets, torch.zeros(1, 2).double(), torch.ones(1).double(), torch.tensor([2.0]))
    assert found.weights == pytest.approx(torch.tensor([[-0.25, 0.25], [0.75, 0.25]]).double())
    # Each image alone predicts its own label for the other: a constant.
    assert found.held_out == pytest.approx(1 - targets)


def test_a_start_in_the_right_direction_is_scaled_to_the_targets():
    features, targets = torch.tensor([[0.0], [2.0]]).double(), torch.eye(2).double()
    start = torch.tensor([[-7.0, 7.0]]).double()
    found = solve_near(features, targets, start, torch.ones(1).double(), torch.tensor([2.0]))
    assert found.weights == pytest.approx(torch.tensor([[-0.5, 0.5], [1.0, 0.0]]).double())


@pytest.mark.parametrize("penalty", [0.1, 3.0, 100.0])
def test_the_head_minimises_its_equation(few, penalty):
    features, targets, start, variances = few
    found = solve_near(*few, torch.tensor([penalty]))
    centred = (features - features.mean(dim=0)) @ start
    part = (centred * targets).sum() / centred.square().sum()
    weights = found.weights.clone().requires_grad_()
    fit = (with_bias(features) @ weights - targets).square().sum()
    (fit + penalty * (variances[:, None] * (weights[:-1] - part * start).square()).sum()).backward()
    assert part > 0
    assert weights.grad.abs().max() < 1e-9


def test_scores_of_left_out_images_are_those_of_refits_and_the_penalty_is_the_best_of_them(few):
    features, targets, start, variances = few
    centred = (features - features.mean(dim=0)) @ start
    scaled_start = start * (centred * targets).sum() / centred.square().sum()
    errors = {}
    for penalty in (0.5, 5.0, 50.0):
        scores = []
        for row in range(12):
            kept = torch.arange(12) != row
            mean, wanted = features[kept].mean(dim=0), targets[kept].mean(dim=0)
            missing = targets[kept] - wanted - (features[kept] - mean) @ scaled_start
            normal = (features[kept] - mean).T @ (features[kept] - mean) + penalty * torch.diag(variances)
            weights = scaled_start + torch.linalg.solve(normal, (features[kept] - mean).T @ missing)
            scores.append(wanted + (features[row] - mean) @ weights)
        refitted = torch.stack(scores)
        errors[penalty] = float((refitted - targets).square().sum())
        assert solve_near(*few, torch.tensor([penalty])).held_out == pytest.approx(refitted, abs=1e-9)
    assert solve_near(*few, torch.tensor(list(errors))).penalty == min(errors, key=errors.__getitem__)


def test_a_start_that_takes_classes_for_each_other_is_left_and_a_constant_feature_is_harmless(few):
    features, targets, start, variances = few
    features[:, 0], variances[0] = 1.0, 0.0
    wrong, nothing = solve_near(features, targets, -features.T @ targets, variances), 0 * start
    assert wrong.weights == pytest.approx(solve_near(features, targets, nothing, variances).weights)
    assert wrong.weights.isfinite().all()


@pytest.fixture
def added():
    """Sums of 60 weighted images; features, targets and class weights of eight further ones."""
    generator = numpy_generator("added")
    features = torch.from_numpy(generator.normal(3, 2, (68, 5)))
    targets = torch.eye(3).double()[torch.from_numpy(generator.integers(0, 3, 68))]
    weights = torch.from_numpy(generator.uniform(0.5, 2, 60))
    relative = targets[60:] @ torch.tensor([0.5, 1.0, 3.0]).double()
    return sums_of([(features[:60], targets[:60], weights)], 5, 3), features[60:], targets[60:], relative


def solved_by_hand(sums, nu, features, targets, weights):
    """The normal equations of all images together."""
    products, wanted, total = sums.products.numpy(), sums.targets.numpy(), sums.weight
    means = products[:-1, -1] / total
    deviations = np.diag([*(products.diagonal()[:-1] / total - means**2), 0])
    rows = np.column_stack([features.numpy(), np.ones(len(features))])
    left = products + nu * total * deviations + (weights[:, None] * rows).T @ rows
    return np.linalg.solve(left, wanted + (weights[:, None] * rows).T @ targets.numpy())


@pytest.mark.parametrize("weight", [1e-3, 1.0, 50.0])
def test_labels_added_to_sums_give_the_head_of_all_images_together(added, weight):
    sums, features, targets, relative = added
    weights = weight * relative.numpy()
    found = solve_added(sums, 0.3, features, targets, relative, torch.tensor([weight]))
    assert found.weights.numpy() == pytest.approx(solved_by_hand(sums, 0.3, features, targets, weights), abs=1e-10)
    for left_out in range(len(features)):
        others = [row for row in range(len(features)) if row != left_out]
        head = solved_by_hand(sums, 0.3, features[others], targets[others], weights[others])
        score = np.append(features[left_out].numpy(), 1) @ head
        assert found.held_out[left_out].numpy() == pytest.approx(score, abs=1e-10)


def test_the_weight_of_added_labels_has_the_smallest_error_of_images_left_out(added):
    sums, features, targets, relative = added
    grid = MU_GRID * sums.weight / relative.sum()
    missed = [solve_added(sums, 0.3, features, targets, relative, one[None]).held_out - targets for one in grid]
    errors = [float((relative @ one.square()).sum()) for one in missed]
    best = solve_added(sums, 0.3, features, targets, relative)
    assert best.penalty == pytest.approx(float(grid[int(np.argmin(errors))]))
