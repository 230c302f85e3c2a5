"""Counts of predictions that the server adds up and cannot read, and what sites release of the sum."""

import numpy as np
import pytest
import torch

from grandrounds.errors import MessageError
from grandrounds.evaluation.counts import HIDDEN, SiteCounts, suppress_counts
from grandrounds.evaluation.record import EvalRecord
from grandrounds.federation.count_sums import CountSums
from grandrounds.federation.encrypted_counts import count_shapes, decrypt_counts, encrypt_counts
from grandrounds.privacy.mechanisms.ciphertexts import make_keys
from grandrounds.privacy.mechanisms.encrypted_sums import EncryptedSum, SumOf, encrypt_tensors
from grandrounds.protocol.problem import Problem
from grandrounds.protocol.tasks import SINGLE

pytest.importorskip("tenseal")

SITES = ("site-1", "site-2", "site-3")
SHAPE = (1, 2, 3)
USE = SumOf("run-1", "pooled_common", 4)
TABLE = np.array([[[5, 0, 5], [10, 5, 0]]])
"""Five images of the first class, of single patients, all found; five of the second are taken for it."""


@pytest.fixture(scope="module")
def keys():
    return make_keys()


def counts(table=TABLE):
    return SiteCounts(np.asarray(table, np.int64), np.asarray(table, np.int64))


def contributions(keys, sites=SITES, minimum=10, table=TABLE):
    return {site: encrypt_counts(counts(table), minimum, site, keys.secret, USE) for site in sites}


def added(given, keys):
    total = EncryptedSum(keys.public, "the counts")
    for site, contribution in given.items():
        total.check(site, contribution, count_shapes(SHAPE))
        total.add(site, contribution)
    return total.close()


def test_a_class_of_five_cases_at_each_of_three_sites_is_hidden_alone_and_shown_together(keys):
    assert suppress_counts(counts(), 10).hidden.all()
    shown = decrypt_counts(added(contributions(keys), keys), "site-2", keys.secret, SHAPE, USE)
    assert shown.images.tolist() == shown.patients.tolist() == [[[15, 0, 15], [30, 15, 0]]]


def test_the_sites_largest_minimum_counts(keys):
    given = contributions(keys) | contributions(keys, ["site-3"], minimum=16)
    shown = decrypt_counts(added(given, keys), "site-1", keys.secret, SHAPE, USE)
    assert (shown.images == HIDDEN).all()


def test_a_sum_with_a_site_that_shows_its_own_counts_is_refused(keys):
    """Such a site hides nothing: the sum less its table would be a table of the two others, in which nothing is hidden."""
    given = contributions(keys) | contributions(keys, ["site-3"], minimum=1)
    with pytest.raises(MessageError, match="show their own counts"):
        decrypt_counts(added(given, keys), "site-1", keys.secret, SHAPE, USE)
    shown = decrypt_counts(added(contributions(keys, minimum=1), keys), "site-1", keys.secret, SHAPE, USE)
    assert not shown.hidden.any()


def test_a_sum_of_two_sites_or_of_others_is_refused(keys):
    with pytest.raises(MessageError, match="at least 3 different sites"):
        decrypt_counts(added(contributions(keys, SITES[:2]), keys), "site-1", keys.secret, SHAPE, USE)
    with pytest.raises(MessageError, match="site-4 must be among them"):
        decrypt_counts(added(contributions(keys), keys), "site-4", keys.secret, SHAPE, USE)


@pytest.mark.parametrize("strange", [{"images": 0.5}, {"images": -9.0}, {"minimums": 1.0}])
def test_a_sum_that_is_not_of_counts_is_refused(keys, strange):
    """Such as one to which the server has added numbers."""
    whole = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in count_shapes(SHAPE).items()}
    whole["minimums"][10] = 1
    for name, value in strange.items():
        whole[name] += value
    given = contributions(keys) | {"site-3": encrypt_tensors(whole, "site-3", keys.secret, USE)}
    with pytest.raises(MessageError, match="sum of the encrypted counts"):
        decrypt_counts(added(given, keys), "site-1", keys.secret, SHAPE, USE)


@pytest.fixture
def sums(keys):
    """Sums at the server, to which the first sites of three have added their counts."""

    def make(number=3, tested=SITES, silent=()):
        known, unknown = EvalRecord(SINGLE, ("a", "b"), 20, {"accuracy": 0.75}), EvalRecord(SINGLE, ("a", "b"), 0)
        tests = {site: {"common": unknown if site in silent else known} for site in tested}
        made = CountSums(keys.public, Problem("skin", ("a", "b")), tests)
        given = contributions(keys, SITES[:number])
        made.add({site: {"common": {"contribution": value}} for site, value in given.items()})
        return made

    return make


def table(images):
    return {"common": {"images": torch.tensor(images), "patients": torch.tensor(images)}}


def test_the_server_takes_what_all_sites_release(sums):
    whole = [[[15, 0, 15], [30, 15, 0]]]
    found = sums().close({site: table(whole) for site in SITES})["common"]
    assert found.sites == SITES
    assert found.record.images == 60
    # By hand: 15 of 15 and 30 of 45 are found.
    assert found.record.score("balanced_accuracy").value == pytest.approx((1 + 30 / 45) / 2)
    assert found.record.score("accuracy").value == pytest.approx(45 / 60)
    back = EvalRecord.from_json(SINGLE, ("a", "b"), found.to_json()["record"])
    assert back.sheet.scores == found.record.sheet.scores


@pytest.mark.parametrize(
    ("released", "reason"),
    [
        ({"site-1": [[[15, 0, 15], [30, 15, 0]]], "site-2": [[[15, 0, 15], [30, 15, 0]]]}, "site-3 has not released"),
        ({site: [[[15, 0, 15], [30 + (site == "site-2"), 15, 0]]] for site in SITES}, "site-1 and site-2 .* different"),
        ({site: [[[15, 0, 15], [30, 15, -2]]] for site in SITES}, "site-1: counts must not be negative"),
    ],
)
def test_no_other_sum_is_taken(sums, released, reason):
    found = sums().close({site: table(one) for site, one in released.items()})["common"]
    assert found.record is None
    with pytest.raises(MessageError, match=reason):
        raise MessageError(found.to_json()["reason"])


def test_a_sum_of_two_sites_is_not_sent_and_the_reason_is_kept(sums):
    two = sums(2)
    assert two.parts() == {}
    assert two.close({})["common"].reason == ("2 of 3 sites have added their counts, a sum must be of at least 3")


def test_scores_of_some_of_the_sites_have_another_name(sums):
    whole = [[[15, 0, 15], [30, 15, 0]]]
    found = sums(tested=(*SITES, "site-4")).close({site: table(whole) for site in SITES})["common"]
    sheet = found.record.sheet
    assert sheet.scores["balanced_accuracy_of_3_sites"].of == "3 of 4 sites"
    assert not sheet.score("balanced_accuracy").known
    assert sheet.best("balanced_accuracy").value == pytest.approx((1 + 30 / 45) / 2)


def test_images_that_a_site_does_not_count_are_those_of_the_sum_unless_a_class_is_hidden(sums):
    """Without all images the specificity of a class that is shown is not known."""
    whole, hiding = [[[15, 0, 15], [30, 15, 0]]], [[[15, 0, 15], [-1, -1, -1]]]
    found = sums(silent=["site-2"]).close({site: table(whole) for site in SITES})["common"]
    assert (found.record.images, dict(found.record.exact)) == (60, {})
    assert found.record.score("accuracy").value == pytest.approx(45 / 60)
    found = sums(silent=["site-2"]).close({site: table(hiding) for site in SITES})["common"]
    assert (found.record, found.reason) == (None, "a class is hidden, and site-2 keeps the number of its images")


def test_what_is_no_contribution_is_left_out_and_named(sums, keys):
    made = sums(2)
    made.add({"site-3": {"common": {"contribution": torch.zeros(9, dtype=torch.uint8)}}})
    assert made.parts() == {}
    assert "the counts of common of site-3" in made.close({})["common"].reason
