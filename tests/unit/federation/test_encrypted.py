"""Sums of named tensors that the server makes and only sites read; the mean of encrypted models is one of them."""

import json
from dataclasses import replace

import pytest
import torch

from grandrounds.errors import ConfigurationError, MessageError
from grandrounds.federation.encrypted_model import (
    CIPHERTEXTS,
    decrypt_mean,
    encrypt_model,
    encryption_of,
    sum_of_models,
)
from grandrounds.federation.server.aggregate import Demands
from grandrounds.federation.server.encrypted_mean import EncryptedMean
from grandrounds.privacy.mechanisms.ciphertexts import decrypt, encrypt, make_keys
from grandrounds.privacy.mechanisms.encrypted_sums import (
    SERVER_KEY,
    SITE_KEY,
    EncryptedSum,
    SumOf,
    decrypt_sum,
    encrypt_tensors,
    find_key,
    write_keys,
)
from grandrounds.privacy.mechanisms.packing import pack, unpack
from grandrounds.protocol.messages import Release, ReleaseKind, Result
from grandrounds.seeding import torch_generator

tenseal = pytest.importorskip("tenseal")

SITES = ["site-1", "site-2", "site-10"]
USE = SumOf("run-1", "products", 3)
SHAPES = {"products": (70, 70), "counts": (3,), "scale": (), "none": (0, 4)}


@pytest.fixture(scope="module")
def keys():
    return make_keys()


def tensors_of(site):
    """Class counts, a matrix of sums of products, and a number: of very different sizes."""
    features = torch.randn(500, 70, generator=torch_generator(site), dtype=torch.float64)
    return {
        "counts": torch.tensor([0, 17, 400]),
        "products": features.T @ features * 20,
        "scale": torch.tensor(1e-6),
        "none": torch.zeros(0, 4),
    }


def added(contributions, keys):
    total = EncryptedSum(keys.public, "the test")
    for site, contribution in contributions.items():
        total.add(site, contribution)
    return total.close()


@pytest.fixture(scope="module")
def sums(keys):
    return added({site: encrypt_tensors(tensors_of(site), site, keys.secret, USE) for site in reversed(SITES)}, keys)


def test_the_sum_of_named_tensors_is_the_float64_sum_with_its_roster(keys, sums):
    found, roster = decrypt_sum(sums, keys.secret, SHAPES, USE)
    assert roster == dict.fromkeys(SITES, 3)
    assert {name: tuple(value.shape) for name, value in found.items()} == SHAPES
    largest = max(float(tensors_of(site)["products"].max()) for site in SITES)
    for name, value in found.items():
        plain = sum(tensors_of(site)[name].double() for site in SITES)
        assert value.dtype == torch.float64
        # The promise of ``decrypt``; 2^-60 of a float32 model's sums would be lost in single precision.
        torch.testing.assert_close(value, plain, rtol=0, atol=1e-11 + 3e-14 * largest)
    assert found["counts"].round().tolist() == [0, 51, 1200]


def test_small_numbers_are_summed_to_eleven_decimals(keys):
    small = {"gradient": torch.linspace(-1e-4, 1e-4, 300, dtype=torch.float64)}
    total = added({site: encrypt_tensors(small, site, keys.secret, USE) for site in SITES}, keys)
    found, _ = decrypt_sum(total, keys.secret, {"gradient": (300,)}, USE)
    torch.testing.assert_close(found["gradient"], 3 * small["gradient"], rtol=0, atol=1e-11)


def with_roster(packed, change):
    *ciphertexts, content = unpack(packed, "the sum")
    return pack([*ciphertexts, json.dumps(change(json.loads(content))).encode()])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda entries: entries[:2], "must be of at least 3 different sites"),
        (lambda entries: [entries[0], *entries[:2]], "must be of at least 3 different sites"),
        (lambda entries: [*entries, ["site-4", 3, "0" * 32]], "is not the sum of what its sites have encrypted"),
        (lambda entries: [[site, 3, "0" * 32] for site, _, _ in entries], "is not the sum of what its sites"),
        (lambda entries: [[site, 2, nonce] for site, _, nonce in entries], "of site-1 from round 2, expected 3"),
        (lambda entries: ["site-1", "site-2", "site-10"], "have no roster"),
        (lambda entries: [[1, 3, "0"]], "have no roster"),
        (lambda entries: {}, "have no roster"),
    ],
)
def test_a_sum_that_is_not_of_its_roster_is_refused(keys, sums, change, reason):
    with pytest.raises(MessageError, match=reason):
        decrypt_sum(with_roster(sums, change), keys.secret, SHAPES, USE)


def test_a_sum_of_another_key_or_of_other_tensors_is_refused(keys, sums):
    with pytest.raises(MessageError, match="of another key"):
        decrypt_sum(sums, make_keys().secret, SHAPES, USE)
    with pytest.raises(MessageError, match="holds 4912 numbers, expected 4909: another architecture"):
        decrypt_sum(sums, keys.secret, {"products": (70, 70), "scale": ()}, USE)
    with pytest.raises(MessageError, match="it must be of at least 4 different sites"):
        decrypt_sum(sums, keys.secret, SHAPES, USE, at_least=4)


SMALL = {"w": torch.linspace(-1, 1, 40, dtype=torch.float64)}


def attacked(keys, attack):
    """A sum of three sites' contributions, as a server makes it that has the public key and changes ciphertexts."""
    context = tenseal.context_from(keys.public)

    def contribution(site, use=USE):
        (ciphertext, roster) = unpack(encrypt_tensors(SMALL, site, keys.secret, use), "one")
        return tenseal.ckks_vector_from(context, ciphertext), json.loads(roster)

    contribution.secret = keys.secret  # with which a test computes what no server can
    vectors, rosters = zip(*(contribution(site) for site in SITES), strict=True)
    total, entries = attack(list(vectors), [entry for roster in rosters for entry in roster], contribution)
    return pack([total.serialize(), json.dumps(entries).encode()])


def masked(vectors, entries, contribution):
    """Site 1's first number alone, with its tags: what a product by a plaintext decrypts to (TenSEAL lacks the range)."""
    mask = torch.tensor([1.0] + [0.0] * 39 + [1.0] * 4, dtype=torch.float64)
    product = decrypt([vectors[0].serialize()], contribution.secret) * mask
    one = tenseal.ckks_vector_from(vectors[0].context(), encrypt(product, contribution.secret)[0])
    return vectors[1] + vectors[2] + one, entries


def repeated(vectors, entries, contribution):
    return vectors[0] + vectors[0] + vectors[1], entries


def scaled(vectors, entries, contribution):
    total = vectors[0] + vectors[1] + vectors[2]
    return total + total, entries


def own_number_added(vectors, entries, contribution):
    return vectors[0] + vectors[1] + vectors[2] + ([1e-6] + [0.0] * 43), entries


def own_model_in_place(vectors, entries, contribution):
    return vectors[0] + vectors[1] + ([1.0] * 44), entries


def of_another_round(vectors, entries, contribution):
    old, ((site, _, nonce),) = contribution("site-10", replace(USE, round_number=2))
    return vectors[0] + vectors[1] + old, [*entries[:2], [site, 3, nonce]]


def of_another_run(vectors, entries, contribution):
    other, (entry,) = contribution("site-10", replace(USE, run="run-0"))
    return vectors[0] + vectors[1] + other, [*entries[:2], entry]


def of_another_sum(vectors, entries, contribution):
    other, (entry,) = contribution("site-10", replace(USE, what="counts"))
    return vectors[0] + vectors[1] + other, [*entries[:2], entry]


def asked_twice(vectors, entries, contribution):
    """Twice site 1's contribution less the one that it has made when it was asked again."""
    again, _ = contribution("site-1")
    return vectors[0] + vectors[0] - again + vectors[1] + vectors[2], entries


@pytest.mark.parametrize(
    "attack",
    [
        masked,
        repeated,
        scaled,
        own_number_added,
        own_model_in_place,
        of_another_round,
        of_another_run,
        of_another_sum,
        asked_twice,
    ],
)
def test_what_the_server_makes_of_ciphertexts_is_refused_before_it_is_used(keys, attack):
    good = attacked(keys, lambda vectors, entries, _: (vectors[0] + vectors[1] + vectors[2], entries))
    found, _ = decrypt_sum(good, keys.secret, {"w": (40,)}, USE)
    torch.testing.assert_close(found["w"], 3 * SMALL["w"], rtol=0, atol=1e-11)
    with pytest.raises(MessageError, match="is not the sum of what its sites have encrypted"):
        decrypt_sum(attacked(keys, attack), keys.secret, {"w": (40,)}, USE)


def test_blocks_cannot_change_places(keys):
    large = {"w": torch.linspace(-1, 1, 2 * 4092, dtype=torch.float64)}
    total = added({site: encrypt_tensors(large, site, keys.secret, USE) for site in SITES}, keys)
    decrypt_sum(total, keys.secret, {"w": (2 * 4092,)}, USE)
    first, second, roster = unpack(total, "the sum")
    with pytest.raises(MessageError, match="is not the sum of what"):
        decrypt_sum(pack([second, first, roster]), keys.secret, {"w": (2 * 4092,)}, USE)


def test_what_would_spoil_the_sum_of_all_is_refused_before_it_is_added(keys):
    total, own = EncryptedSum(keys.public, "soft labels"), {"w": torch.ones(4)}
    good = encrypt_tensors(own, "site-1", keys.secret, USE)
    total.check("site-1", good, {"w": (2, 2)})
    total.add("site-1", good)
    vector = tenseal.ckks_vector(tenseal.context_from(keys.public), [1.0] * 8, scale=2.0**30).serialize()
    entry = b'[["site-2", 3, "0"]]'
    for site, wrong, reason in (
        ("site-1", good, "expected one contribution of this site, got one of site-1"),
        ("site-2", good, "expected one contribution of this site, got one of site-1"),
        ("site-2", encrypt_tensors({"w": torch.ones(3)}, "site-2", keys.secret, USE), r"of \[8\] numbers, got \[7\]"),
        ("site-2", pack([vector, entry]), "cannot be added: scale mismatch"),
        ("site-2", pack([b"no ciphertext", entry]), "damaged"),
        ("site-2", pack([entry]), "damaged"),
    ):
        with pytest.raises(MessageError, match=f"soft labels of {site}.*{reason}|{reason}"):
            total.check(site, wrong, {"w": (4,)})
    assert total.roster == ["site-1"]


MODELS = [
    {"w": torch.tensor([[1.5, -2.0], [0.0, 300.0]]), "count": torch.tensor(7), "b": torch.tensor([0.25])},
    {"w": torch.tensor([[0.5, 4.0], [1e-3, 100.0]]), "count": torch.tensor(9), "b": torch.tensor([-0.75])},
    {"w": torch.tensor([[1.0, 1.0], [2e-3, 200.0]]), "count": torch.tensor(9), "b": torch.tensor([2.0])},
]


@pytest.mark.parametrize(
    ("weights", "kernel", "bias"),
    [
        ([1.0, 1.0, 1.0], [[1.0, 1.0], [1e-3, 200.0]], 0.5),
        # (100 * 1.5 + 300 * .5 + 400 * 1) / 800 = .875, and so on
        ([100.0, 300.0, 400.0], [[0.875, 1.75], [0.001375, 175.0]], 0.75),
    ],
)
def test_the_weighted_mean_of_encrypted_models_is_right_to_the_last_bits_of_single_precision(
    weights, kernel, bias, keys
):
    mean = EncryptedMean("samples")
    mean.key, mean._encryption, mean._integers = keys.public, encryption_of(MODELS[0], "samples"), {"count": 7}
    mean.open(SITES)
    for site, model, weight in zip(SITES, MODELS, weights, strict=True):
        update = {CIPHERTEXTS: encrypt_model(model, weight, site, keys.secret, sum_of_models("run-1", 1))}
        mean.check(site, Result({"update": Release(ReleaseKind.ENCRYPTED_VALUES, update)}), MODELS[0])
        mean.add(site, update)
    mean.skip("site-4")
    aggregate = mean.close()
    assert mean.moved({}, aggregate) == aggregate
    assert aggregate["count"] == 7
    shapes, use = mean.values()["encryption"]["shapes"], sum_of_models("run-1", 1)
    found, models = decrypt_mean(aggregate[CIPHERTEXTS], keys.secret, shapes, use)
    assert models == 3
    assert list(found) == ["w", "b"]
    torch.testing.assert_close(found["w"], torch.tensor(kernel), rtol=1.2e-7, atol=1e-11)
    torch.testing.assert_close(found["b"], torch.tensor([bias]), rtol=1.2e-7, atol=1e-11)


@pytest.mark.parametrize(
    ("demands", "reason"),
    [
        (Demands(2, "float32"), "min_sites must be at least 3"),
        (Demands(3, "float16"), "update_precision must be float32"),
        (Demands(3, "float32", ("peers are single models",)), "hides models and single updates.* and peers are single"),
    ],
)
def test_the_class_says_what_it_forbids(demands, reason):
    EncryptedMean("uniform").require_possible(Demands(3, "float32"))
    with pytest.raises(ConfigurationError, match=reason):
        EncryptedMean("uniform").require_possible(demands)


def test_keys_are_for_their_owners_alone(keys, tmp_path):
    write_keys(tmp_path, ["site-1"])
    assert (tmp_path / "site-1" / SITE_KEY).stat().st_mode & 0o077 == 0
    assert not list((tmp_path / "server").glob(SITE_KEY))
    find_key([tmp_path], "site-1")
    find_key([tmp_path / "server"], "server")
    with pytest.raises(ConfigurationError, match="site-2: encryption needs a key; there is none at"):
        find_key([tmp_path], "site-2")


@pytest.mark.parametrize(("party", "name", "wrong"), [("server", SERVER_KEY, "secret"), ("site-1", SITE_KEY, "public")])
def test_the_key_of_the_other_side_is_refused(party, name, wrong, keys, tmp_path):
    (tmp_path / name).write_bytes(getattr(keys, wrong))
    with pytest.raises(ConfigurationError, match="secret key"):
        find_key([tmp_path], party)


def test_ciphertexts_come_back_as_they_were():
    assert unpack(pack([b"abc", b"d" * 300]), "the numbers") == [b"abc", b"d" * 300]


@pytest.mark.parametrize(
    "packed",
    [
        torch.zeros(3, dtype=torch.uint8),
        pack([b"abc", b"defg"])[:-1],
        torch.cat([pack([b"abc"]), torch.zeros(1, dtype=torch.uint8)]),
        pack([]),
        pack([b"", b"abc"]),
        torch.full((16,), 255, dtype=torch.uint8),
        torch.zeros(2, 8, dtype=torch.uint8),
        torch.zeros(16),
    ],
)
def test_bytes_that_are_no_packed_ciphertexts_are_refused(packed):
    with pytest.raises(MessageError, match=r"the numbers: .*(damaged|expected a vector)"):
        unpack(packed, "the numbers")
