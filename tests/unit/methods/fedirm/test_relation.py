"""A class's row is the softened mean of its logits; unknown rows are masked; a mean counts the sites that know a row."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.special import softmax

from grandrounds.methods.fedirm.relation import (
    Relation,
    RelationAccumulator,
    mean_relation,
    pseudo_relation,
    relation_distance,
    relation_matrix,
    require_relation,
    withhold_rows,
)
from grandrounds.protocol.tasks import SINGLE
from grandrounds.seeding import torch_generator

LOGITS = torch.tensor([[2.0, 0, 0], [4, 0, -2], [0, 2, 0]], dtype=torch.float64)
LABELS = torch.tensor([0, 0, 1])
ROWS = torch.tensor([[0.736125, 0.164252, 0.099624], [0.211942, 0.576117, 0.211942], [1 / 3] * 3], dtype=torch.float64)
UNIFORM = [1 / 3] * 3


def relation(rows, support):
    return Relation(torch.tensor(rows), torch.tensor(support))


def random_relation(number, classes=3):
    generator = torch_generator("relation", number)
    return Relation(
        torch.randn(classes, classes, generator=generator).softmax(dim=1),
        torch.randint(5, 100, (classes,), generator=generator),
    )


def batches(count, size, classes):
    generator = torch_generator("batches", count)
    return [
        (torch.randn(size, classes, generator=generator), torch.randint(classes, (size,), generator=generator))
        for _ in range(count)
    ]


def close(values, expected):
    torch.testing.assert_close(values, expected, rtol=0, atol=5e-7)


def test_rows_match_the_hand_computed_batch():
    matrix, support = relation_matrix(LOGITS, LABELS, temperature=2.0)
    close(matrix, ROWS)
    assert support.tolist() == [2, 1, 0]


def test_known_rows_are_those_with_samples():
    assert relation_matrix(LOGITS, LABELS).known.tolist() == [True, True, False]


def test_the_letter_of_equation_5_gives_flat_rows():
    matrix, _ = relation_matrix(LOGITS.softmax(dim=1), LABELS, temperature=2.0)
    close(matrix[0], torch.tensor([0.430290, 0.285407, 0.284303], dtype=torch.float64))


def test_rows_agree_with_numpy_and_scipy():
    logits, labels = batches(1, 60, 5)[0]
    expected = np.stack([softmax(logits.numpy()[labels == c].mean(axis=0) / 3.5) for c in range(5)])
    torch.testing.assert_close(relation_matrix(logits, labels, temperature=3.5).matrix, torch.from_numpy(expected))


def test_only_kept_samples_count_and_only_they_get_a_gradient():
    logits = LOGITS.clone().requires_grad_()
    matrix, support = relation_matrix(logits, LABELS, keep=torch.tensor([True, False, True]))
    matrix.square().sum().backward()
    assert support.tolist() == [1, 1, 0]
    torch.testing.assert_close(matrix[0].detach(), torch.from_numpy(softmax([1.0, 0.0, 0.0])))
    assert [bool(row.any()) for row in logits.grad] == [True, False, True]


def test_a_sample_that_is_not_kept_may_be_infinite():
    logits = torch.tensor([[1.0, 0.0], [math.inf, math.nan]], requires_grad=True)
    matrix, _ = relation_matrix(logits, torch.tensor([0, 0]), keep=torch.tensor([True, False]))
    matrix[0, 0].backward()
    assert torch.isfinite(matrix).all()
    assert logits.grad[1].tolist() == [0.0, 0.0]


def test_the_row_of_an_absent_class_is_uniform_and_has_no_gradient():
    logits = LOGITS.clone().requires_grad_()
    matrix, _ = relation_matrix(logits, LABELS)
    matrix[2].square().sum().backward()
    assert matrix[2].tolist() == UNIFORM
    assert not logits.grad.any()


def test_under_autocast_half_precision_logits_are_averaged_in_single_precision():
    # The sum, 43 * 3.015625 = 129.67, would be 130 in bfloat16.
    logits = torch.tensor([[3.015625, 0.0]]).repeat(43, 1).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        matrix, _ = relation_matrix(logits, torch.zeros(43, dtype=torch.long))
    torch.testing.assert_close(matrix[0].double(), torch.from_numpy(softmax([3.015625 / 2, 0.0])), rtol=0, atol=1e-6)


def test_pseudo_labels_are_the_most_probable_classes_of_certain_samples():
    every = torch.tensor([True, True, True])
    close(pseudo_relation(SINGLE, LOGITS, every).matrix, ROWS)
    assert pseudo_relation(SINGLE, LOGITS, torch.tensor([False, True, False])).support.tolist() == [1, 0, 0]
    flat, _ = pseudo_relation(SINGLE, LOGITS, every, source="probabilities")
    close(flat[0], torch.tensor([0.430290, 0.285407, 0.284303], dtype=torch.float64))


def test_accumulating_batches_of_any_size_is_the_matrix_of_all_samples():
    logits, labels = batches(1, 50, 4)[0]
    accumulator = RelationAccumulator(SINGLE, classes=4)
    for start, stop in itertools.pairwise((0, 16, 17, 40, 50)):
        accumulator.add(logits[start:stop], labels[start:stop])
    matrix, support = accumulator.relation()
    torch.testing.assert_close(matrix, relation_matrix(logits, labels).matrix)
    assert support.tolist() == np.bincount(labels, minlength=4).tolist()


def test_the_mean_of_batches_counts_absent_classes_as_uniform_and_short_batches_as_full():
    accumulator = RelationAccumulator(SINGLE, classes=3, average="batches")
    accumulator.add(LOGITS, LABELS)
    accumulator.add(LOGITS[2:], LABELS[2:])
    matrix, support = accumulator.relation()
    close(matrix[0].double(), (ROWS[0] + 1 / 3) / 2)
    close(matrix[1].double(), ROWS[1])
    assert support.tolist() == [2, 2, 0]


@pytest.mark.parametrize("average", ["samples", "batches"])
def test_before_the_first_batch_nothing_is_known(average):
    matrix, support = RelationAccumulator(SINGLE, classes=3, average=average).relation()
    torch.testing.assert_close(matrix, torch.full((3, 3), 1 / 3))
    assert support.tolist() == [0, 0, 0]


def test_an_accumulator_keeps_no_graph():
    accumulator = RelationAccumulator(SINGLE, classes=3)
    accumulator.add(LOGITS.clone().requires_grad_(), LABELS)
    assert not accumulator.relation().matrix.requires_grad


def test_a_rare_class_is_withheld():
    matrix, support = withhold_rows(relation([[0.8, 0.2], [0.1, 0.9]], [4, 5]), min_support=5)
    assert matrix.tolist() == [[0.5, 0.5], pytest.approx([0.1, 0.9])]
    assert support.tolist() == [-1, 5]


def test_an_absent_class_is_withheld_like_a_rare_one():
    """Otherwise a support of 0 beside one of -1 would reveal that a patient has the rare class."""
    _, support = withhold_rows(relation([UNIFORM] * 3, [0, 2, 7]), min_support=5)
    assert support.tolist() == [-1, -1, 7]
    assert withhold_rows(relation([UNIFORM] * 3, [0, 2, 7]), min_support=0).support.tolist() == [0, 2, 7]


def test_a_withheld_row_is_never_known_and_never_counted():
    shown = withhold_rows(relation([[0.8, 0.2], [0.1, 0.9]], [4, 5]), min_support=5)
    assert shown.known.tolist() == [False, True]
    require_relation(shown, (2, 2), "the relation of site-1")
    matrix, support = mean_relation([shown, relation([[0.6, 0.4], [0.3, 0.7]], [5, 5])], min_support=0)
    torch.testing.assert_close(matrix, torch.tensor([[0.6, 0.4], [0.2, 0.8]]))
    assert support.tolist() == [1, 2]


def test_each_row_is_averaged_over_the_sites_with_enough_samples():
    first = relation([[0.8, 0.1, 0.1], [0.2, 0.6, 0.2], UNIFORM], [10, 9, 0])
    second = relation([[0.6, 0.3, 0.1], [0.0, 1.0, 0.0], [0.4, 0.3, 0.3]], [5, 4, 2])
    matrix, support = mean_relation([first, second], min_support=5)
    torch.testing.assert_close(matrix, torch.tensor([[0.7, 0.2, 0.1], [0.2, 0.6, 0.2], UNIFORM]))
    assert support.tolist() == [2, 1, 0]


def test_with_no_least_support_uniform_rows_count_as_in_the_authors_code():
    first = relation([[0.8, 0.2], [0.5, 0.5]], [10, 0])
    second = relation([[0.6, 0.4], [0.1, 0.9]], [5, 1])
    matrix, support = mean_relation([first, second], min_support=0)
    torch.testing.assert_close(matrix, torch.tensor([[0.7, 0.3], [0.3, 0.7]]))
    assert support.tolist() == [2, 2]


def test_the_mean_of_sites_is_the_mean_of_their_matrices():
    relations = [random_relation(number, 4) for number in range(5)]
    expected = np.mean([each.matrix.numpy() for each in relations], axis=0)
    torch.testing.assert_close(mean_relation(relations).matrix, torch.from_numpy(expected))


def test_the_mean_has_the_same_bits_in_every_order_of_sites():
    # The large entries add up to a number halfway between two of single precision; the small ones move it off there only
    # if they are added to each other first.
    entries = (0.5 + 2**-24, 0.5, 0.75 * 2**-53, 0.75 * 2**-53)
    relations = [
        Relation(torch.tensor([[x, 1 - x], [0.5, 0.5]], dtype=torch.float64), torch.tensor([5, 5])) for x in entries
    ]
    assert len({float(np.float32(sum(order) / 4)) for order in itertools.permutations(entries)}) == 2
    means = [mean_relation(order).matrix for order in itertools.permutations(relations)]
    assert all(torch.equal(mean, means[0]) for mean in means)


def test_the_distance_is_taken_over_rows_that_both_know():
    first = relation([[0.9, 0.1], [0.3, 0.7]], [1, 3])
    second = relation([[0.5, 0.5], [0.1, 0.9]], [2, 1])
    assert relation_distance(first, second).item() == pytest.approx(0.3)
    assert relation_distance(first._replace(support=torch.tensor([0, 1])), second).item() == pytest.approx(0.2)
    assert relation_distance(first._replace(support=torch.tensor([0, 0])), second).isnan()


def test_a_matrix_of_distributions_passes():
    require_relation(random_relation(1), (3, 3), "the relation of site-1")
    require_relation(mean_relation([random_relation(1)]), (3, 3), "the mean")


@pytest.mark.parametrize(
    ("rows", "support", "message"),
    [
        (
            [[0.5, 0.5], [0.5, 0.5]],
            [1, 1],
            r"M of site-2 must have shape \(3, 3\), a row for each class, got \(2, 2\)",
        ),
        ([UNIFORM, [0.5, math.nan, 0.5], UNIFORM], [1, 1, 1], "row 1 of M of site-2 has a negative or non-finite"),
        ([UNIFORM, UNIFORM, [1.2, -0.1, -0.1]], [1, 1, 1], "row 2 of M of site-2 has a negative or non-finite"),
        ([UNIFORM, UNIFORM, [0.5, 0.5, 0.5]], [1, 1, 1], r"row 2 of M of site-2 sums to 1\.5, expected 1"),
        ([UNIFORM, UNIFORM, [0.0, 0.0, 0.0]], [1, 1, 0], "row 2 of M of site-2 sums to 0, expected 1"),
        ([UNIFORM] * 3, [1, 1], r"the support of M of site-2 must have shape \(3,\), got \(2,\)"),
        ([UNIFORM] * 3, [1, -2, 1], "must be 0 or more, or -1 for a withheld row, got -2 for class 1"),
        ([UNIFORM] * 3, [1.0, 1.0, math.nan], "the support of M of site-2 must be 0 or more, .*, got nan for class 2"),
    ],
)
def test_an_invalid_matrix_is_refused(rows, support, message):
    with pytest.raises(ValueError, match=message):
        require_relation(relation(rows, support), (3, 3), "M of site-2")
