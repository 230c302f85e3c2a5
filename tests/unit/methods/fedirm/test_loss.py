"""The losses of sites with and without labels, and the ramp of the latter."""

import math

import pytest
import torch
from scipy.stats import entropy

from grandrounds.methods.fedirm.relation import (
    Relation,
    consistency_loss,
    pseudo_relation,
    ramp_up,
    relation_matching_loss,
    relation_matrix,
    unlabelled_loss,
)
from grandrounds.protocol.tasks import SINGLE
from grandrounds.seeding import torch_generator

ONE = torch.tensor([[2.0, 0.0, 0.0]], dtype=torch.float64)
TARGET = torch.tensor([[0.7, 0.2, 0.1], [0.2, 0.7, 0.1], [0.1, 0.2, 0.7]], dtype=torch.float64)
UNIFORM = torch.full((3, 3), 1 / 3, dtype=torch.float64)
ALL = torch.tensor([1, 1, 1])


def randoms(purpose, *shape):
    return torch.randn(*shape, generator=torch_generator(purpose), dtype=torch.float64)


@pytest.mark.parametrize(("batch_size", "expected"), [(None, 0.02), (48, 4.1667e-4)])
def test_consistency_matches_the_hand_computed_sample(batch_size, expected):
    student, teacher = torch.tensor([[0.7, 0.2, 0.1]]), torch.tensor([[0.6, 0.3, 0.1]])
    assert consistency_loss(student, teacher, batch_size).item() == pytest.approx(expected, rel=1e-5)


def test_consistency_is_averaged_over_the_batch_and_teaches_the_student_only():
    student = torch.tensor([[0.7, 0.3], [0.5, 0.5]], requires_grad=True)
    teacher = torch.tensor([[0.6, 0.4], [0.5, 0.5]], requires_grad=True)
    loss = consistency_loss(student, teacher)
    loss.backward()
    assert loss.item() == pytest.approx(0.01)
    torch.testing.assert_close(student.grad, torch.tensor([[0.1, -0.1], [0.0, 0.0]]))
    assert teacher.grad is None


def test_consistency_of_no_images_is_zero_with_a_graph():
    student = torch.zeros(0, 3, requires_grad=True)
    loss = consistency_loss(student, torch.zeros(0, 3))
    loss.backward()
    assert loss.item() == 0.0


def test_divergence_matches_the_hand_computed_row_in_each_direction():
    # KL(M || s) = .296794 and KL(s || M) = .324287 in one of three rows.
    assert entropy(TARGET[0], UNIFORM[0]) == pytest.approx(0.296794, abs=5e-7)
    assert entropy(UNIFORM[0], TARGET[0]) == pytest.approx(0.324287, abs=5e-7)
    loss = relation_matching_loss(Relation(TARGET, ALL), Relation(UNIFORM, torch.tensor([1, 0, 0])))
    assert 3 * loss.item() == pytest.approx(0.621081, abs=5e-7)


def test_divergence_matches_the_hand_computed_matrix_in_the_papers_and_the_codes_scale():
    loss = relation_matching_loss(Relation(TARGET, ALL), Relation(UNIFORM, ALL))
    assert loss.item() == pytest.approx(0.621081, abs=5e-7)
    zero = torch.zeros(())
    assert unlabelled_loss(zero, loss, ramp=1.0, relation_weight=0.5).item() == pytest.approx(0.310540, abs=1e-6)


def test_divergence_agrees_with_scipy_both_ways():
    target, own = randoms("target", 5, 5).softmax(dim=1), randoms("own", 5, 5).softmax(dim=1)
    expected = sum(entropy(target[c], own[c]) + entropy(own[c], target[c]) for c in range(5)) / 5
    loss = relation_matching_loss(Relation(target, torch.ones(5)), Relation(own, torch.ones(5)))
    assert loss.item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("theirs", "ours", "rows"),
    [([1, 1, 1], [1, 1, 0], 2), ([0, 1, 1], [1, 1, 0], 1), ([0, 1, 0], [1, 0, 1], 0)],
)
def test_only_rows_that_both_know_count_and_the_divisor_stays(theirs, ours, rows):
    loss = relation_matching_loss(Relation(TARGET, torch.tensor(theirs)), Relation(UNIFORM, torch.tensor(ours)))
    assert loss.item() == pytest.approx(rows * 0.621081 / 3, abs=1e-6)


def test_a_missing_row_has_the_same_gradient_masked_or_uniform():
    keep, gradients = torch.tensor([True] * 3), []
    for known in ([2, 1, 0], [2, 1, 1]):
        logits = torch.tensor([[2.0, 0, 0], [4, 0, -2], [0, 2, 0]], requires_grad=True)
        own = pseudo_relation(SINGLE, logits, keep)._replace(support=torch.tensor(known))
        relation_matching_loss(Relation(TARGET, ALL), own).backward()
        gradients.append(logits.grad)
    assert torch.equal(*gradients)
    assert gradients[0].any()


def test_the_gradient_of_a_single_row_is_that_of_the_formula():
    # For s = softmax(v): d KL(M || s) / dv = s - M, and d KL(s || M) / dv = s (ln(s / M) - KL(s || M)).
    logits = torch.tensor([[0.3, -0.2, 0.1]], dtype=torch.float64, requires_grad=True)
    own = relation_matrix(logits, torch.tensor([0]), temperature=1.0)
    relation_matching_loss(Relation(TARGET, ALL), own).backward()
    s, m = own.matrix[0].detach(), TARGET[0]
    expected = (s - m + s * ((s / m).log() - entropy(s, m))) / 3
    torch.testing.assert_close(logits.grad[0], expected)


def test_no_gradient_reaches_the_labelled_sites_matrix():
    target, own = TARGET.clone().requires_grad_(), UNIFORM.clone().requires_grad_()
    relation_matching_loss(Relation(target, ALL), Relation(own, ALL)).backward()
    assert target.grad is None
    assert own.grad.any()


def test_a_batch_without_certain_samples_costs_nothing():
    logits = ONE.clone().requires_grad_()
    loss = relation_matching_loss(Relation(TARGET, ALL), pseudo_relation(SINGLE, logits, torch.tensor([False])))
    loss.backward()
    assert loss.item() == 0.0
    assert not logits.grad.any()


def test_rows_that_have_underflowed_cost_a_finite_amount():
    logits = torch.tensor([[500.0, 0.0]], requires_grad=True)
    target = Relation(torch.tensor([[0.0, 1.0], [0.5, 0.5]]), torch.tensor([1, 1]))
    loss = relation_matching_loss(target, pseudo_relation(SINGLE, logits, torch.tensor([True])))
    loss.backward()
    assert loss.item() == pytest.approx(math.log(1e8), rel=1e-4)  # 2 ln 1e8, over two classes
    assert torch.isfinite(logits.grad).all()


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ({"ramp": 1.0}, 0.62),
        ({"ramp": 0.5}, 0.31),
        ({"ramp": 1.0, "relation_weight": 0.0}, 0.02),
        ({"ramp": 0.5, "scale": 15.0, "relation_weight": 0.5}, 2.4),
    ],
)
def test_the_unlabelled_objective_weighs_its_terms(weights, expected):
    assert unlabelled_loss(torch.tensor(0.02), torch.tensor(0.6), **weights).item() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("elapsed", "weight"),
    [
        (0, 0.0067379),
        (10, 0.1083680),
        (15, 0.2865048),
        (20, 0.5737534),
        (21, 0.6376282),
        (25, 0.8703),
        (30, 1),
        (60, 1),
    ],
)
def test_the_squared_ramp_has_the_hand_computed_values(elapsed, weight):
    assert ramp_up(elapsed, 30) == pytest.approx(weight, abs=5e-5 if elapsed == 25 else 1e-6)


@pytest.mark.parametrize(
    ("elapsed", "weight"),
    [(0, 0.0067), (10, 0.0357), (15, 0.0821), (20, 0.1889), (21, 0.2231), (25, 0.4346), (30, 1), (60, 1)],
)
def test_the_printed_ramp_has_no_square_but_is_clipped(elapsed, weight):
    assert ramp_up(elapsed, 30, "printed") == pytest.approx(weight, abs=5e-5)


@pytest.mark.parametrize("kind", ["squared", "printed"])
def test_without_length_the_weight_is_full_from_the_start(kind):
    assert ramp_up(0, 0, kind) == 1.0
