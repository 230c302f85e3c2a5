from itertools import combinations

import pytest

from grandrounds.errors import ConfigurationError, MessageError
from grandrounds.privacy.secure_sums.opening import reconstructed
from grandrounds.privacy.secure_sums.shares import PRIME, opened, sealed, split, threshold

SECRET = bytes(range(32))


@pytest.mark.parametrize(
    ("sites", "colluding", "needed"),
    [(3, 1, 3), (4, 1, 3), (5, 1, 4), (6, 1, 4), (10, 1, 6), (10, 0, 6), (10, 3, 7), (3, 0, 2), (4, 3, 4)],
)
def test_the_threshold_is_above_half_of_sites_and_colluders(sites, colluding, needed):
    assert threshold(sites, colluding) == needed
    assert needed > (sites + colluding) / 2 >= needed - 1


@pytest.mark.parametrize(("sites", "colluding"), [(2, 1), (0, 0), (3, 3), (3, -1)])
def test_too_few_sites_are_refused(sites, colluding):
    with pytest.raises(ConfigurationError):
        threshold(sites, colluding)


def test_shares_follow_the_polynomial():
    """Secret 7 and one coefficient 5: 7 + 5 x."""
    shares = split((7).to_bytes(32, "little"), 2, 3, lambda size: (5).to_bytes(size, "little"))
    assert [int.from_bytes(share, "little") for share in shares] == [12, 17, 22]


def test_the_field_is_prime():
    assert pow(3, PRIME - 1, PRIME) == 1
    assert PRIME == (1 << 521) - 1


@pytest.mark.parametrize(("needed", "count"), [(1, 1), (2, 3), (3, 4), (4, 6)])
def test_any_that_are_enough_open_the_secret(needed, count):
    shares = dict(enumerate(split(SECRET, needed, count), 1))
    for size in range(needed, count + 1):
        for chosen in combinations(shares, size):
            assert reconstructed({at: shares[at] for at in chosen}, needed) == SECRET
    with pytest.raises(MessageError, match=f"{needed}"):
        reconstructed(dict(list(shares.items())[: needed - 1]), needed)


def test_fewer_shares_fit_every_secret():
    """One share of two: for each other secret there is a polynomial through it."""
    share = int.from_bytes(split(SECRET, 2, 3)[0], "little")
    for other in (0, 1, 2**256 - 1):
        slope = (share - other) % PRIME
        assert (other + slope) % PRIME == share


def test_a_wrong_share_is_noticed_where_there_is_one_more():
    shares = dict(enumerate(split(SECRET, 3, 4), 1))
    shares[2] = (int.from_bytes(shares[2], "little") ^ 1).to_bytes(66, "little")
    with pytest.raises(MessageError, match="wrong"):
        reconstructed(shares, 3)


@pytest.mark.parametrize("share", [b"", bytes(65), bytes(67), b"\xff" * 66, PRIME.to_bytes(66, "little")])
def test_what_is_no_element_of_the_field_is_refused(share):
    shares = dict(enumerate(split(SECRET, 2, 3), 1)) | {1: share}
    with pytest.raises(MessageError, match="66"):
        reconstructed(shares, 2)


@pytest.mark.parametrize(("secret", "needed", "count"), [(b"short", 2, 3), (SECRET, 0, 3), (SECRET, 4, 3)])
def test_what_cannot_be_split_is_refused(secret, needed, count):
    with pytest.raises(ConfigurationError):
        split(secret, needed, count)


@pytest.mark.parametrize(
    "changed",
    [
        {"secret": b"\2" * 32},
        {"context": b"other"},
        {"sender": "c"},
        {"receiver": "c"},
        {"sender": "b", "receiver": "a"},
    ],
)
def test_a_sealed_share_opens_for_its_receiver_and_attempt_only(changed):
    say = {"secret": b"\1" * 32, "context": b"digest", "sender": "a", "receiver": "b"}
    box = sealed(b"share", **say)
    assert opened(box, **say) == b"share"
    with pytest.raises(MessageError, match="share"):
        opened(box, **(say | changed))


def test_a_changed_box_does_not_open():
    box = bytearray(sealed(b"share", b"\1" * 32, b"", "a", "b"))
    box[0] ^= 1
    with pytest.raises(MessageError, match="changed"):
        opened(bytes(box), b"\1" * 32, b"", "a", "b")
