"""Rows survive the wire on the simplex, and what is no soft label of these images is refused by name."""

import pytest
import torch

from grandrounds.errors import MessageError
from grandrounds.methods.mutual.contributions import Contribution, leave_one_out_mean, sum_rows
from grandrounds.methods.mutual.soft_labels import (
    bytes_of_rows,
    decode_rows,
    encode_rows,
    require_same_public_set,
    require_scores,
    require_soft_labels,
)
from grandrounds.seeding import torch_generator

GOOD = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]])


def random_rows(*purpose, images=200, classes=13, scale=3):
    return (scale * torch.randn(images, classes, generator=torch_generator(*purpose))).softmax(dim=1)


def test_uint8_is_rounded_by_half_a_level_at_most_and_normalised_again():
    encoded = encode_rows(GOOD, "uint8")
    assert encoded.dtype == torch.uint8
    # 255 * (.7, .2, .1) = (178.5, 51, 25.5), a little more or less in float32.
    assert encoded[0, 1] == 51
    rows = random_rows("uint8")
    encoded = encode_rows(rows, "uint8")
    assert float((encoded.double() / 255 - rows.double()).abs().max()) <= 1 / 510 + 1e-12
    decoded = decode_rows(encoded, 200, 13, "rows")
    torch.testing.assert_close(decoded.sum(dim=1), torch.ones(200), atol=1e-6, rtol=0)
    assert float((decoded - rows).abs().max()) < 13 / 510


@pytest.mark.parametrize(("wire", "error"), [("fp64", 0), ("fp32", 0), ("fp16", 2**-11)])
def test_floating_formats_come_back_within_their_rounding(wire, error):
    rows = random_rows("float")
    decoded = decode_rows(encode_rows(rows, wire), 200, 13, "rows")
    assert float((decoded - rows).abs().max()) <= error
    torch.testing.assert_close(decoded.sum(dim=1, dtype=torch.float64), torch.ones(200).double(), atol=1e-6, rtol=0)
    assert decoded.dtype == (torch.float64 if wire == "fp64" else torch.float32)


def test_half_precision_rows_are_normalised_again():
    coarse = torch.tensor([[0.9995, 0.00025, 0.00025]]).half()
    assert float(coarse.double().sum()) != 1
    assert float(decode_rows(coarse, 1, 3, "rows").double().sum()) == pytest.approx(1, abs=1e-7)


@pytest.mark.parametrize("purpose", range(3))
def test_eight_bits_hardly_turn_the_gradient(purpose):
    exact = {site: random_rows("cosine", purpose, site, scale=1) for site in ("a", "b", "c", "d")}
    sent = {site: decode_rows(encode_rows(rows, "uint8"), 200, 13, site) for site, rows in exact.items()}
    targets = [
        leave_one_out_mean(sum_rows({s: Contribution(1, r) for s, r in rows.items()}), "a", {1: rows["a"]})
        for rows in (exact, sent)
    ]
    assert float((targets[0] - targets[1]).abs().max()) < 0.005
    gradients = [(exact["a"] - target).flatten() for target in targets]
    assert float(torch.cosine_similarity(gradients[0], gradients[1], dim=0)) > 0.9999


def test_a_site_that_takes_out_what_it_computed_instead_of_what_it_sent_is_off():
    exact = {site: random_rows("own", site) for site in ("a", "b")}
    sent = {site: decode_rows(encode_rows(rows, "uint8"), 200, 13, site) for site, rows in exact.items()}
    row_sum = sum_rows({site: Contribution(1, rows) for site, rows in sent.items()})
    torch.testing.assert_close(leave_one_out_mean(row_sum, "a", {1: sent["a"]}), sent["b"], atol=1e-6, rtol=0)
    assert float((leave_one_out_mean(row_sum, "a", {1: exact["a"]}) - sent["b"]).abs().max()) > 1e-4


def test_bytes_are_rows_times_classes_times_width():
    assert [bytes_of_rows(26379, 13, wire) for wire in ("fp32", "fp16", "uint8")] == [1_371_708, 685_854, 342_927]
    encoded = encode_rows(GOOD, "fp16")
    assert encoded.numel() * encoded.element_size() == bytes_of_rows(2, 3, "fp16")


def test_formats_that_do_not_exist_or_cannot_hold_the_rows_are_refused():
    with pytest.raises(ValueError, match="wire must be one of fp64, fp32, fp16, uint8, got 'int4'"):
        encode_rows(GOOD, "int4")
    with pytest.raises(ValueError, match="uint8 cannot hold rows of 256 classes, at most 255; use fp16"):
        encode_rows(torch.full((1, 256), 1 / 256), "uint8")
    with pytest.raises(MessageError, match=r"rows of a: expected one of fp64, fp32, fp16, uint8, got torch\.int64"):
        decode_rows(torch.ones(2, 3, dtype=torch.int64), 2, 3, "rows of a")


@pytest.mark.parametrize("classes", [2, 255])
def test_rows_that_round_as_far_as_rows_can_survive(classes):
    # Uniform rows of 255 classes are one level each; half of the others are a little above half a level, or below.
    for rows in (torch.full((1, classes), 1 / classes), torch.eye(classes)[:1]):
        torch.testing.assert_close(decode_rows(encode_rows(rows, "uint8"), 1, classes, "rows"), rows, atol=0.01, rtol=0)
    halves = torch.cat([torch.full((252,), 0.5001 / 255), torch.tensor([1 - 126.0252 / 255, 0.0, 0.0])])[None]
    assert int(encode_rows(halves, "uint8").sum()) == 252 + 129
    decoded = decode_rows(encode_rows(halves, "uint8"), 1, 255, "rows")
    assert float(decoded.sum()) == pytest.approx(1)


@pytest.mark.parametrize("wire", ["fp32", "fp16", "uint8"])
def test_good_rows_pass_and_rows_off_the_simplex_are_refused_in_every_format(wire):
    decode_rows(encode_rows(GOOD, wire), 2, 3, "rows of a")
    bad = GOOD.clone()
    bad[1, 2] = 0.75
    with pytest.raises(MessageError, match="rows of a: row 1 does not sum to 1"):
        decode_rows(encode_rows(bad, wire), 2, 3, "rows of a")


def test_an_empty_row_of_eight_bits_is_refused():
    for classes in (3, 600):
        with pytest.raises(MessageError, match="rows of a: row 0 does not sum to 1"):
            decode_rows(torch.zeros(1, classes, dtype=torch.uint8), 1, classes, "rows of a")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (float("nan"), "rows of b: row 1 has an entry that is not finite"),
        (float("inf"), "rows of b: row 1 has an entry that is not finite"),
        (-0.1, "rows of b: row 1 has a negative entry"),
        (0.102, "rows of b: row 1 does not sum to 1"),
    ],
)
def test_the_first_row_that_is_no_distribution_is_named(value, message):
    bad = GOOD.clone()
    bad[1, 0] = value
    with pytest.raises(MessageError, match=message):
        require_soft_labels(bad, 2, 3, "rows of b")
    with pytest.raises(MessageError, match=message):
        decode_rows(bad, 2, 3, "rows of b")


def test_rows_a_little_off_are_taken():
    require_soft_labels(GOOD * 1.0009, 2, 3, "rows")


@pytest.mark.parametrize(
    ("images", "classes", "message"),
    [
        (2, 4, "rows of b: expected 4 classes, got 3; all models need the same classes"),
        (3, 3, r"rows of b: expected shape \(3, 3\), got \(2, 3\)"),
    ],
)
def test_another_number_of_classes_or_images_is_refused(images, classes, message):
    for check in (require_soft_labels, require_scores, decode_rows):
        with pytest.raises(MessageError, match=message):
            check(GOOD, images, classes, "rows of b")


def test_integers_are_no_soft_labels():
    with pytest.raises(MessageError, match=r"expected floating-point values, got torch\.int64"):
        require_scores(torch.ones(2, 3, dtype=torch.int64), 2, 3, "rows")


def test_scores_need_be_finite_only():
    require_scores(GOOD * 100 - 50, 2, 3, "scores of a")
    with pytest.raises(MessageError, match="scores of a: row 0 has an entry that is not finite"):
        require_scores(GOOD / 0 * 0, 2, 3, "scores of a")


def test_a_sum_must_be_one_of_as_many_distributions():
    require_soft_labels(GOOD + GOOD.flip(0), 2, 3, "the sum", parties=2)
    with pytest.raises(MessageError, match="the sum: row 0 does not sum to 3"):
        require_soft_labels(GOOD + GOOD.flip(0), 2, 3, "the sum", parties=3)
    require_soft_labels(GOOD * 2.0018, 2, 3, "the sum", parties=2)
    nearly_zero = torch.tensor([[2.0, 1e-6, -1e-6]])
    require_soft_labels(nearly_zero, 1, 3, "the sum", parties=2)
    with pytest.raises(MessageError, match="the sum: row 0 has a negative entry"):
        require_soft_labels(torch.tensor([[2.1, 0.0, -0.1]]), 1, 3, "the sum", parties=2)


def test_rows_about_another_public_set_are_refused():
    require_same_public_set("ab" * 32, "ab" * 32, "rows of c")
    with pytest.raises(
        MessageError, match=r"rows of c are about another public set \(cdcdcdcdcdcd, here abababababab\)"
    ):
        require_same_public_set("ab" * 32, "cd" * 32, "rows of c")
