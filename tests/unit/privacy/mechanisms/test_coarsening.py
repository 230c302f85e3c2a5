"""Hidden classes tell nothing, and coarser soft labels stay distributions."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grandrounds.privacy.mechanisms.coarsening import WITHHELD_COUNT, quantise_rows, withhold_classes

MATRIX = torch.tensor([[0.8, 0.1, 0.1], [0.2, 0.6, 0.2], [0.3, 0.3, 0.4]])


def test_rows_with_too_little_support_are_uniform_and_marked():
    matrix, support = withhold_classes(MATRIX, torch.tensor([4, 5, 0]), minimum=5)
    torch.testing.assert_close(matrix[[0, 2]], torch.full((2, 3), 1 / 3))
    assert torch.equal(matrix[1], MATRIX[1])
    assert support.tolist() == [WITHHELD_COUNT, 5, WITHHELD_COUNT]
    assert support.dtype == torch.int64


def test_withheld_values_stay_withheld():
    assert withhold_classes(MATRIX, torch.tensor([WITHHELD_COUNT, 9, 9]), minimum=2)[1].tolist() == [
        WITHHELD_COUNT,
        9,
        9,
    ]


@pytest.mark.parametrize(
    ("matrix", "support", "message"),
    [
        (MATRIX, torch.tensor([1.0, 2.0, 3.0]), "support must be int64"),
        (MATRIX[:2], torch.tensor([1, 2, 3]), r"matrix must be of floating point and shape \(3, 3 or 2\)"),
        (MATRIX * 2, torch.tensor([1, 2, 3]), "row 0 of matrix sums to 2"),
        (MATRIX, torch.tensor([1, -2, 3]), "a support must be -1 or more, got -2"),
    ],
)
def test_other_statistics_are_refused(matrix, support, message):
    with pytest.raises(ValueError, match=message):
        withhold_classes(matrix, support, minimum=2)


@given(seed=st.integers(0, 10_000), levels=st.integers(2, 255), classes=st.integers(2, 12))
def test_rows_stay_on_the_simplex_and_near(seed, levels, classes):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.softmax(4 * torch.randn(6, classes, generator=generator, dtype=torch.float64), dim=1)
    found = quantise_rows(rows, levels)
    torch.testing.assert_close((found * levels).round(), found * levels, rtol=0, atol=1e-9)
    torch.testing.assert_close(found.sum(dim=1), torch.ones(6, dtype=torch.float64))
    assert bool((found >= 0).all())
    assert bool(((found - rows).abs() < 1 / levels + 1e-12).all())


def test_eight_bits_stay_eight_bits():
    rows = torch.tensor([[178, 51, 26], [255, 0, 0]], dtype=torch.uint8)
    found = quantise_rows(rows, 5)
    assert found.dtype == torch.uint8
    assert found.tolist() == [
        [153, 51, 51],
        [255, 0, 0],
    ]  # 3.49, 1 and 0.51 fifths: the one that is missing goes to the last
    assert torch.equal(quantise_rows(rows, 255), rows)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (torch.tensor([[0.5, 0.5], [0.5, 0.6]]), "row 1 of soft labels is not a distribution: it sums to 1.1, not 1"),
        (torch.tensor([[1.5, -0.5]]), "row 0 of soft labels is not a distribution"),
        (torch.tensor([[float("nan"), 1.0]]), "row 0 of soft labels is not a distribution"),
        (torch.tensor([[0.5, 0.52]], dtype=torch.float16), "not a distribution"),
        (torch.tensor([[100, 100]], dtype=torch.uint8), "it sums to 200, not 255"),
        (torch.tensor([[1, 0]]), "got torch.int64"),
        (torch.tensor([0.5, 0.5]), r"must have shape \(samples, classes\)"),
    ],
)
def test_invalid_soft_labels_are_refused(rows, message):
    with pytest.raises(ValueError, match=message):
        quantise_rows(rows, 10)
