"""Soft labels survive the wire as distributions, and what is not a soft label of these images is refused by name."""

import pytest
import torch

from grandrounds.errors import MessageError
from grandrounds.methods.mutual.soft_labels import (
    SoftLabels,
    add_up,
    decode,
    encode,
    require_logits,
    require_soft_labels,
)
from grandrounds.seeding import torch_generator

GOOD = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]])


def random_rows(*purpose, images=200, classes=13, scale=3):
    return (scale * torch.randn(images, classes, generator=torch_generator(*purpose))).softmax(dim=1)


def test_uint8_is_rounded_by_half_a_level_at_most_and_normalised_again():
    encoded = encode(GOOD, "uint8")
    assert encoded.dtype == torch.uint8
    # 255 * (.7, .2, .1) = (178.5, 51, 25.5), a little more or less in float32.
    assert encoded[0, 1] == 51
    rows = random_rows("uint8")
    encoded = encode(rows, "uint8")
    assert float((encoded.double() / 255 - rows.double()).abs().max()) <= 1 / 510 + 1e-12
    decoded = decode(encoded, 200, 13, "soft labels")
    torch.testing.assert_close(decoded.sum(dim=1), torch.ones(200), atol=1e-6, rtol=0)
    assert float((decoded - rows).abs().max()) < 13 / 510


@pytest.mark.parametrize(("wire", "error"), [("fp64", 0), ("fp32", 0), ("fp16", 2**-11)])
def test_floating_formats_come_back_within_their_rounding(wire, error):
    rows = random_rows("float")
    decoded = decode(encode(rows, wire), 200, 13, "soft labels")
    assert float((decoded - rows).abs().max()) <= error
    torch.testing.assert_close(decoded.sum(dim=1, dtype=torch.float64), torch.ones(200).double(), atol=1e-6, rtol=0)
    assert decoded.dtype == (torch.float64 if wire == "fp64" else torch.float32)


def test_half_precision_rows_are_normalised_again():
    coarse = torch.tensor([[0.9995, 0.00025, 0.00025]]).half()
    assert float(coarse.double().sum()) != 1
    assert float(decode(coarse, 1, 3, "soft labels").double().sum()) == pytest.approx(1, abs=1e-7)


@pytest.mark.parametrize("purpose", range(3))
def test_eight_bits_hardly_turn_the_gradient(purpose):
    exact = {site: random_rows("cosine", purpose, site, scale=1) for site in ("a", "b", "c", "d")}
    sent = {site: decode(encode(rows, "uint8"), 200, 13, site) for site, rows in exact.items()}
    targets = [
        add_up({s: SoftLabels.of_site(s, 1, r) for s, r in rows.items()}).mean_of_others("a", {1: rows["a"]})
        for rows in (exact, sent)
    ]
    assert float((targets[0] - targets[1]).abs().max()) < 0.005
    gradients = [(exact["a"] - target).flatten() for target in targets]
    assert float(torch.cosine_similarity(gradients[0], gradients[1], dim=0)) > 0.9999


def test_a_site_that_takes_out_what_it_computed_instead_of_what_it_sent_is_off():
    exact = {site: random_rows("own", site) for site in ("a", "b")}
    sent = {site: decode(encode(rows, "uint8"), 200, 13, site) for site, rows in exact.items()}
    total = add_up({site: SoftLabels.of_site(site, 1, rows) for site, rows in sent.items()})
    torch.testing.assert_close(total.mean_of_others("a", {1: sent["a"]}), sent["b"], atol=1e-6, rtol=0)
    assert float((total.mean_of_others("a", {1: exact["a"]}) - sent["b"]).abs().max()) > 1e-4


def test_formats_that_cannot_hold_the_rows_are_refused():
    with pytest.raises(ValueError, match="uint8 cannot hold rows of 256 classes, at most 255; use fp16"):
        encode(torch.full((1, 256), 1 / 256), "uint8")
    with pytest.raises(MessageError, match=r"soft labels of a: expected .* got torch\.int64"):
        decode(torch.ones(2, 3, dtype=torch.int64), 2, 3, "soft labels of a")


@pytest.mark.parametrize("classes", [2, 255])
def test_rows_that_round_as_far_as_rows_can_survive(classes):
    # Uniform rows of 255 classes are one level each; half of the others are a little above half a level, or below.
    for rows in (torch.full((1, classes), 1 / classes), torch.eye(classes)[:1]):
        torch.testing.assert_close(decode(encode(rows, "uint8"), 1, classes, "soft labels"), rows, atol=0.01, rtol=0)
    halves = torch.cat([torch.full((252,), 0.5001 / 255), torch.tensor([1 - 126.0252 / 255, 0.0, 0.0])])[None]
    assert int(encode(halves, "uint8").sum()) == 252 + 129
    decoded = decode(encode(halves, "uint8"), 1, 255, "soft labels")
    assert float(decoded.sum()) == pytest.approx(1)


@pytest.mark.parametrize("wire", ["fp32", "fp16", "uint8"])
def test_good_rows_pass_and_rows_off_the_simplex_are_refused_in_every_format(wire):
    decode(encode(GOOD, wire), 2, 3, "soft labels of a")
    bad = GOOD.clone()
    bad[1, 2] = 0.75
    with pytest.raises(MessageError, match="soft labels of a: row 1 does not sum to 1"):
        decode(encode(bad, wire), 2, 3, "soft labels of a")


def test_an_empty_row_of_eight_bits_is_refused():
    for classes in (3, 600):
        with pytest.raises(MessageError, match="soft labels of a: row 0 does not sum to 1"):
            decode(torch.zeros(1, classes, dtype=torch.uint8), 1, classes, "soft labels of a")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (float("nan"), "soft labels of b: row 1 has an entry that is not finite"),
        (float("inf"), "soft labels of b: row 1 has an entry that is not finite"),
        (-0.1, "soft labels of b: row 1 has a negative entry"),
        (0.102, "soft labels of b: row 1 does not sum to 1"),
    ],
)
def test_the_first_row_that_is_no_distribution_is_named(value, message):
    bad = GOOD.clone()
    bad[1, 0] = value
    with pytest.raises(MessageError, match=message):
        require_soft_labels(bad, 2, 3, "soft labels of b")
    with pytest.raises(MessageError, match=message):
        decode(bad, 2, 3, "soft labels of b")


def test_rows_a_little_off_are_taken():
    require_soft_labels(GOOD * 1.0009, 2, 3, "soft labels")


@pytest.mark.parametrize(
    ("images", "classes", "message"),
    [
        (2, 4, "soft labels of b: expected 4 classes, got 3; all models need the same classes"),
        (3, 3, r"soft labels of b: expected shape \(3, 3\), got \(2, 3\)"),
    ],
)
def test_another_number_of_classes_or_images_is_refused(images, classes, message):
    for check in (require_soft_labels, require_logits, decode):
        with pytest.raises(MessageError, match=message):
            check(GOOD, images, classes, "soft labels of b")


def test_integers_are_no_soft_labels():
    with pytest.raises(MessageError, match=r"expected floating-point values, got torch\.int64"):
        require_logits(torch.ones(2, 3, dtype=torch.int64), 2, 3, "soft labels")


def test_scores_need_be_finite_only():
    require_logits(GOOD * 100 - 50, 2, 3, "scores of a")
    with pytest.raises(MessageError, match="scores of a: row 0 has an entry that is not finite"):
        require_logits(GOOD / 0 * 0, 2, 3, "scores of a")
