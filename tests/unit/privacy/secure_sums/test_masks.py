import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from grandrounds.errors import MessageError
from grandrounds.privacy.secure_sums.masks import derived, framed, masked, pair_seed, stream
from grandrounds.privacy.secure_sums.opening import unmasked

ZEROS = {"a": np.zeros(16, np.uint32)}


def test_the_stream_of_the_zero_key_is_that_of_rfc_8439():
    """Appendix A.1, test vector 1: key, nonce and counter 0."""
    block = (
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    )
    assert stream(bytes(32), ZEROS)["a"].astype("<u4").tobytes().hex() == block


def test_the_second_block_is_that_of_rfc_8439():
    """Appendix A.1, test vector 2: counter 1."""
    words = stream(bytes(32), {"a": np.zeros(32, np.uint32)})["a"]
    assert words[16:].astype("<u4").tobytes().hex().startswith("9f07e7be5551387a98ba977c732d080d")


def test_tensors_take_the_stream_in_the_order_of_their_names():
    one = stream(bytes(32), {"b": np.zeros((2, 2), np.uint32), "a": np.zeros(2, np.uint64)})
    whole = stream(bytes(32), ZEROS)["a"]
    assert one["a"].tobytes() == whole[:4].tobytes()
    assert one["b"].tobytes() == whole[4:8].tobytes()
    assert one["b"].shape == (2, 2)


@pytest.mark.parametrize("seed", [b"", bytes(31), bytes(33)])
def test_a_seed_of_another_length_is_refused(seed):
    with pytest.raises(MessageError, match="32"):
        stream(seed, ZEROS)


def test_both_sites_of_a_pair_find_the_same_seed_and_other_contexts_another():
    one, two = X25519PrivateKey.generate(), X25519PrivateKey.generate()
    public = [key.public_key().public_bytes_raw() for key in (one, two)]
    seed = pair_seed(one, public[1], b"digest", "a", "b")
    assert seed == pair_seed(two, public[0], b"digest", "b", "a")
    assert seed != pair_seed(one, public[1], b"other", "a", "b")
    assert seed != pair_seed(one, public[1], b"digest", "a", "c")


@pytest.mark.parametrize("public", [bytes(32), bytes(31), (1).to_bytes(32, "little")])
def test_a_key_of_low_order_is_refused_and_its_site_named(public):
    with pytest.raises(MessageError, match="site-2"):
        pair_seed(X25519PrivateKey.generate(), public, b"", "site-1", "site-2")


def test_keys_for_different_purposes_differ():
    keys = {
        derived(bytes(32), purpose, context, *names)
        for purpose, context, names in (
            ("mask", b"x", ("a", "b")),
            ("share", b"x", ("a", "b")),
            ("mask", b"y", ("a", "b")),
            ("mask", b"x", ("ab", "")),
        )
    }
    assert len(keys) == 4
    assert framed(b"ab", b"c") != framed(b"a", b"bc")


SITES = ("a", "b", "c")
PAIRS = {frozenset(pair): bytes([k]) * 32 for k, pair in enumerate([("a", "b"), ("a", "c"), ("b", "c")], 1)}
OWN = {name: bytes([k]) * 32 for k, name in enumerate(SITES, 11)}
WORDS = {name: {"x": np.array([k, 2**32 - 1], np.uint32)} for k, name in enumerate(SITES, 1)}


def seeds(site, others=SITES):
    return {other: PAIRS[frozenset((site, other))] for other in others if other != site}


def total(sites):
    sent = [masked(WORDS[name], OWN[name], seeds(name), name)["x"] for name in sites]
    return {"x": sum(sent[1:], sent[0])}


def test_masks_follow_the_equation_of_the_paper():
    own, other = (
        stream(OWN["b"], WORDS["b"])["x"],
        {name: stream(seed, WORDS["b"])["x"] for name, seed in seeds("b").items()},
    )
    assert np.array_equal(
        masked(WORDS["b"], OWN["b"], seeds("b"), "b")["x"], WORDS["b"]["x"] + own + other["c"] - other["a"]
    )


def test_masks_of_pairs_cancel_in_the_sum_of_all():
    assert unmasked(total(SITES), OWN.values(), {})["x"].tolist() == [6, 2**32 - 3]


@pytest.mark.parametrize("lost", SITES)
def test_masks_of_a_lost_site_are_taken_away(lost):
    left = [name for name in SITES if name != lost]
    opened = unmasked(total(left), [OWN[name] for name in left], {lost: seeds(lost)})["x"]
    assert opened.tolist() == (sum(WORDS[name]["x"].astype(np.uint64) for name in left) % 2**32).tolist()


@pytest.mark.parametrize("missing", SITES)
def test_without_one_own_seed_nothing_is_opened(missing):
    assert unmasked(total(SITES), [OWN[name] for name in SITES if name != missing], {})["x"].tolist() != [6, 2**32 - 3]


def test_a_site_without_partners_sends_nothing():
    with pytest.raises(MessageError, match="no partner"):
        masked(WORDS["a"], OWN["a"], {}, "a")
    with pytest.raises(MessageError, match="own partner"):
        masked(WORDS["a"], OWN["a"], {"a": bytes(32)}, "a")


def test_masked_words_are_uniform_and_independent():
    """Chi-square of bytes, 255 degrees of freedom: below 377 but for 1e-6; correlation below 5 / sqrt(n)."""
    same = {"x": np.full(50_000, 7, np.uint32)}
    sent = []
    for seed in (b"\1", b"\2"):
        sent.append(masked(same, seed * 32, {"b": (b"\3" if seed == b"\1" else b"\4") * 32}, "a")["x"])
    for words in sent:
        counts = np.bincount(words.view(np.uint8), minlength=256)
        assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 377
    assert abs(np.corrcoef(*(words.astype(float) for words in sent))[0, 1]) < 5 / np.sqrt(50_000)
