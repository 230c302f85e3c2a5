"""The attacks of a server with code of its own, and losses of sites, on one attempt at a sum."""

import random
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from sum_federation import JOB, NAMES, QUANTITY, RUN, Federation, MemoryNotes, certificate, joined, partners

from grandrounds.errors import ConfigurationError, MessageError
from grandrounds.privacy.secure_sums.attempt import Rules, SiteAttempt, Unmasking, renewed_batches
from grandrounds.privacy.secure_sums.masks import with_pair_masks
from grandrounds.privacy.secure_sums.opening import open_sum, reconstructed
from grandrounds.privacy.secure_sums.roster import Roster, RunKeys


def same(one, two):
    return one.keys() == two.keys() and all(np.array_equal(one[name], two[name]) for name in one)


def test_the_sum_of_all_sites_is_exact(federation):
    federation.share()
    federation.masked()
    federation.settled()
    assert same(federation.opened(), federation.expected(NAMES))


def test_t_answers_open_a_sum_in_which_everybody_is(federation):
    federation.share()
    federation.masked()
    federation.settled(NAMES, signers=NAMES[:4])
    assert same(federation.opened(), federation.expected(NAMES))
    del federation.answers[NAMES[0]]
    with pytest.raises(MessageError, match="4"):
        federation.opened()


@pytest.mark.parametrize("lost", NAMES)
def test_a_site_lost_before_its_input_is_not_in_the_sum(federation, lost):
    left = [name for name in NAMES if name != lost]
    federation.share()
    federation.masked(left)
    federation.settled()
    assert same(federation.opened(), federation.expected(left))
    del federation.answers[left[-1]]
    with pytest.raises(MessageError, match="lost"):
        federation.opened()


def test_nothing_is_opened_without_the_answers(federation):
    federation.share()
    federation.masked()
    with pytest.raises(MessageError):
        open_sum(federation.roster, 4, federation.inputs, {})


def test_two_attempts_have_other_nonces_and_masks(federation):
    federation.share()
    first, nonces = federation.masked(), dict(federation.roster.nonces)
    federation.begin()
    federation.share()
    second = federation.masked()
    assert all(nonces[name] != federation.roster.nonces[name] for name in NAMES)
    assert not any(np.array_equal(first[name]["weight"], second[name]["weight"]) for name in NAMES)


def test_a_site_lost_in_one_attempt_and_there_in_the_next_stays_closed(federation):
    """The seeds that its partners give away in the first attempt do not open its input of the second."""
    left = NAMES[1:]
    federation.share()
    federation.masked(left)
    given = {name: answer.seeds[NAMES[0]] for name, answer in federation.settled().items()}
    for quantity in (QUANTITY, "update 2"):  # a server that starts again repeats the first
        federation.begin(quantity)
        federation.share()
        federation.masked()
        fresh = {name: federation.sites[NAMES[0]]._pair_seed(name) for name in left}
        assert all(given[name] != fresh[name] for name in left)
    assert all(not answer.seeds for answer in federation.settled().values())


def test_a_quantity_is_not_opened_again_over_other_sites(federation):
    """Else a server that calls the first sum lost sees the difference of two."""
    federation.share()
    federation.masked()
    federation.settled()
    federation.begin()
    federation.share()
    federation.masked(NAMES[:4])
    with pytest.raises(MessageError, match="contributors of update 1"):
        federation.settled()
    federation.begin("update 2")
    federation.share()
    federation.masked(NAMES[:4])
    assert len(federation.settled()) == 4


def fixed(federation, quantity, names, dataset="skin"):
    """One attempt at a sum whose contributors are those of all sums of a data set."""
    federation.begin(quantity)
    federation.share()
    federation.inputs = {
        name: federation.sites[name].masked(federation.words(name), federation.boxes_of(name), b"", dataset)
        for name in names
    }
    return federation.settled()


@pytest.mark.parametrize("run", [RUN, "run-2"], ids=["the same run", "another run"])
@pytest.mark.parametrize("second", ["targets", "counts of a model that was moved by a hair"])
def test_other_sums_of_a_data_set_are_over_the_same_sites_in_every_run(federation, second, run):
    """The difference of two would be one site's part, also where the two are only near each other."""
    assert len(fixed(federation, "counts", NAMES)) == len(NAMES)
    assert len(fixed(federation, second, NAMES)) == len(NAMES)
    federation.rejoin(run)
    with pytest.raises(MessageError, match="sums of skin are over all of"):
        fixed(federation, second, NAMES[:4])
    federation.rejoin(run)
    assert len(fixed(federation, "counts of other images", NAMES[:4], dataset="blood")) == 4


def test_a_site_whose_state_was_restored_opens_nothing_over_other_sites(federation):
    """Its notes are gone, but the others have theirs."""
    fixed(federation, "counts", NAMES)
    federation.notes["site-1"].clear()
    federation.begin("targets")
    federation.share()
    chosen = NAMES[:4]
    for name in chosen:
        federation.sites[name].masked(federation.words(name), federation.boxes_of(name), b"", "skin")
    signatures = {"site-1": federation.sites["site-1"].consent(chosen)}
    for name in set(chosen) - {"site-1"}:
        with pytest.raises(MessageError, match="sums of skin are over all of"):
            federation.sites[name].consent(chosen)
    with pytest.raises(MessageError, match="signed"):
        federation.sites["site-1"].unmasking(signatures)


FIRST, SECOND = ("a", "b", "c"), ("d", "e", "f", "g")


def attempted(federation, names, quantity):
    """One attempt at a sum of a data set over some of the hospitals."""
    federation.begin(quantity)
    federation.roster = Roster(
        quantity,
        {name: federation.joins[name] for name in names},
        {name: federation.sites[name].nonce for name in names},
    )
    federation.share(names)
    federation.inputs = {
        name: federation.sites[name].masked(federation.words(name), federation.boxes_of(name), b"", "skin")
        for name in names
    }
    return federation.settled(names)


def test_a_second_batch_joins_the_sums_of_a_data_set_and_a_smaller_one_does_not():
    """The difference of two sums is then the sum of a whole batch."""
    federation = Federation((*FIRST, *SECOND))
    attempted(federation, FIRST, "counts")
    with pytest.raises(MessageError, match="d, e, f are new in sums of skin, and fewer than 4"):
        attempted(federation, (*FIRST, *SECOND[:3]), "targets")
    assert len(attempted(federation, (*FIRST, *SECOND), "losses")) == 7
    with pytest.raises(MessageError, match="sums of skin are over all of d, e, f, g or none"):
        attempted(federation, (*FIRST, *SECOND[:3]), "scores")
    assert len(attempted(federation, FIRST, "scores of the first")) == 3


def test_without_a_hospital_that_has_left_there_is_a_sum_once_each_has_booked_it():
    names = ("a", "b", "c", "d", "e")
    federation = Federation(names)
    attempted(federation, names, "counts")
    for name in names[:4]:
        with pytest.raises(MessageError, match="ledger contributors"):
            attempted(federation, names[:4], f"counts of {name}")
        notes, gone = renewed_batches(federation.notes[name], "skin", name, names[:4])
        assert gone == ["e"]
        federation.notes[name].update(notes)
    assert len(attempted(federation, names[:4], "counts again")) == 4
    for chosen in (names[:4], ("b", "c"), ("a", "b", "c", "x")):  # nobody has left, itself has, a stranger
        with pytest.raises(ConfigurationError, match="a, b, c, d"):
            renewed_batches(federation.notes["a"], "skin", "a", chosen)


def test_a_lost_sum_can_be_tried_again_over_the_same_sites(federation):
    for _ in range(2):
        federation.share()
        federation.masked()
        federation.settled()
        federation.begin()


def test_a_roster_of_an_earlier_attempt_is_refused(federation):
    old = federation.roster
    federation.begin()
    with pytest.raises(MessageError, match="not of this attempt"):
        federation.sites["site-1"].shares(old)


def test_sites_that_were_asked_different_things_open_nothing(federation):
    """A server that gives the others a model from which nothing can be learnt does not see one site's update."""
    federation.share()
    federation.inputs = {
        name: federation.sites[name].masked(
            federation.words(name), federation.boxes_of(name), b"one" if name == "site-1" else b"others"
        )
        for name in NAMES
    }
    federation.settled()
    # Random words are mostly out of bounds; the few of this test are within them once in twenty times.
    with suppress(MessageError):
        assert not same(federation.opened(), federation.expected(NAMES))


def test_a_roster_with_a_swapped_key_of_the_site_is_refused(federation):
    other = joined("site-1", RunKeys())
    with pytest.raises(MessageError, match="other keys"):
        federation.sites["site-1"].shares(replace(federation.roster, joins=federation.joins | {"site-1": other}))


def test_a_roster_with_a_swapped_key_of_a_partner_is_refused(federation):
    swapped = replace(federation.joins["site-2"], masks=RunKeys().public[1])
    with pytest.raises(MessageError, match="site-2"):
        federation.sites["site-1"].shares(replace(federation.roster, joins=federation.joins | {"site-2": swapped}))


def minted(federation):
    """A roster of one hospital and of the server's own names, certified by the authority that it holds."""
    keys = {name: RunKeys() for name in NAMES if name != "site-1"}
    joins = {
        name: joined(name, key, cert=certificate(name, key=f"minted {name}", hosts=()), key=f"minted {name}")
        for name, key in keys.items()
    }
    return replace(federation.roster, joins=joins | {"site-1": federation.joins["site-1"]})


def test_pinned_a_roster_of_minted_hospitals_is_refused(federation):
    with pytest.raises(MessageError, match="pinned"):
        federation.sites["site-1"].shares(minted(federation))


def test_not_pinned_a_roster_of_minted_hospitals_is_accepted():
    """The stated limit of kits that are made in one place."""
    federation = Federation(pinned=False)
    assert len(federation.sites["site-1"].shares(minted(federation))) == len(NAMES) - 1


def test_a_partner_that_has_the_certificate_of_a_person_is_refused(federation):
    person = joined("site-2", federation.keys["site-2"], cert=certificate("site-2", role="lead", hosts=()))
    with pytest.raises(MessageError, match="person"):
        federation.sites["site-1"].shares(replace(federation.roster, joins=federation.joins | {"site-2": person}))


def test_a_statement_of_an_earlier_run_is_refused(federation):
    old = joined("site-2", federation.keys["site-2"], run="run-0")
    with pytest.raises(MessageError, match="another run"):
        federation.sites["site-1"].shares(replace(federation.roster, joins=federation.joins | {"site-2": old}))


@pytest.mark.parametrize("phase", ["shares", "masked", "consent", "unmasking"])
def test_each_phase_is_answered_once(federation, phase):
    federation.share()
    site, boxes = federation.sites["site-1"], federation.boxes_of("site-1")
    federation.masked()
    federation.settled()
    again = {
        "shares": lambda: site.shares(federation.roster),
        "masked": lambda: site.masked(federation.words("site-1"), boxes),
        "consent": lambda: site.consent(NAMES[:4]),
        "unmasking": lambda: site.unmasking(federation.signatures),
    }
    with pytest.raises(MessageError, match="once"):
        again[phase]()


def test_no_phase_can_be_left_out(federation):
    for call in (
        lambda site: site.masked({}, {}),
        lambda site: site.consent(NAMES),
        lambda site: site.unmasking({}),
    ):
        with pytest.raises(MessageError, match="order"):
            call(federation.sites["site-1"])


@pytest.mark.parametrize(
    "names",
    [
        ("site-1",),
        ("site-1", "site-2"),
        NAMES[:3],
        ("site-1", "site-1", *NAMES[:3]),
        (*NAMES, "other"),
        ("köln", "site-2", "site-3", "site-4"),
        (),
    ],
    ids=["itself", "two", "below t", "one twice", "a stranger", "without itself", "nobody"],
)
def test_a_list_of_contributors_that_would_show_too_much_is_not_signed(federation, names):
    federation.share()
    federation.masked()
    with pytest.raises(MessageError, match="contributors"):
        federation.sites["site-1"].consent(names)


def test_the_policy_may_ask_for_more_sites():
    federation = Federation(rules=Rules(minimum_sites=5))
    federation.share()
    federation.masked()
    with pytest.raises(MessageError, match="fewer than 5"):
        federation.sites["site-1"].consent(NAMES[:4])


def test_different_lists_to_two_sites_open_nothing(federation):
    federation.share()
    federation.masked()
    one, two = NAMES, NAMES[:4]
    signatures = {name: federation.sites[name].consent(one if name != "site-1" else two) for name in NAMES}
    with pytest.raises(MessageError, match="1 sites have signed"):
        federation.sites["site-1"].unmasking(signatures)


@pytest.mark.parametrize("change", ["few", "forged", "of one site", "another attempt"])
def test_without_the_signatures_of_t_sites_nothing_is_opened(federation, change):
    federation.share()
    federation.masked()
    signatures = {name: federation.sites[name].consent(NAMES) for name in NAMES}
    changed = {
        "few": dict(list(signatures.items())[:3]),
        "forged": {name: bytes(64) for name in NAMES},
        "of one site": dict.fromkeys(NAMES, signatures["site-1"]),
        "another attempt": {
            name: federation.keys[name].signing.sign(Federation().roster.contributors(NAMES)) for name in NAMES
        },
    }[change]
    with pytest.raises(MessageError, match="signed"):
        federation.sites["site-1"].unmasking(changed)


@pytest.mark.parametrize("hostile", NAMES)
def test_a_hospital_that_signs_two_lists_opens_nothing_with_the_server(federation, hostile):
    """Two lists of t sites have more sites in common than may collude."""
    federation.share()
    federation.masked()
    one, two = [name for name in NAMES if name != hostile][:2], [name for name in NAMES if name != hostile][2:]
    chosen = {**dict.fromkeys(one, sorted({*NAMES} - {two[0]})), **dict.fromkeys(two, sorted({*NAMES} - {one[0]}))}
    for names in (one, two):
        signatures = {name: federation.sites[name].consent(chosen[name]) for name in names}
        signing = federation.keys[hostile].signing
        signatures[hostile] = signing.sign(federation.roster.contributors(chosen[names[0]]))
        for name in names:
            with pytest.raises(MessageError, match="3 sites have signed these contributors, 4 must"):
                federation.sites[name].unmasking(signatures)


def test_a_hospital_that_repeats_a_key_in_another_form_shares_no_seed_of_it(federation):
    """X25519 takes no notice of the highest bit, so that two names can have one key of a different spelling."""
    masks = bytearray(federation.joins["site-1"].masks)
    masks[-1] ^= 0x80
    federation.keys["site-2"] = SpelledKeys(federation.keys["site-2"], bytes(masks))
    federation.joins["site-2"] = joined("site-2", federation.keys["site-2"])
    federation.begin()
    federation.share([name for name in NAMES if name != "site-2"])
    site = federation.sites["site-3"]
    site._subject = b""
    assert site._pair_seed("site-1") != site._pair_seed("site-2")


class SpelledKeys:
    """A hospital's keys, but a public one that it has from another hospital."""

    def __init__(self, keys, masks):
        self.channel, self.signing, self.masks = keys.channel, keys.signing, keys.masks
        self.public = keys.public[0], masks, keys.public[2]


def test_a_server_and_a_hospital_with_all_that_it_knows_open_no_other(federation):
    """The hospital's seeds and its share of the other's own seed, and what three more tell a server that calls it lost."""
    federation.share()
    inputs = federation.masked()
    left = [name for name in NAMES if name != "site-1"]
    federation.settled(left)
    own = federation.sites["site-4"]._shares["site-1"]
    with pytest.raises(MessageError, match="fewer than the 4"):
        reconstructed({NAMES.index("site-4") + 1: own}, 4)
    seeds = {name: answer.seeds["site-1"] for name, answer in federation.answers.items()}
    bare = with_pair_masks(inputs["site-1"], seeds, "site-1", remove=True)
    assert not any(np.array_equal(bare[name], words) for name, words in federation.words("site-1").items())


def test_no_site_gives_both_kinds_of_share_for_one(federation):
    left = NAMES[:4]
    federation.share()
    federation.masked()  # the server has all inputs, and says that one is lost
    federation.settled(left)
    for answer in federation.answers.values():
        assert set(answer.shares) == set(left)
        assert set(answer.seeds) == set(NAMES) - set(left)
    assert federation.sites[NAMES[4]]._phase == 2  # and it has signed nothing


def test_an_input_that_is_called_lost_and_kept_stays_closed(federation):
    """With the seeds of its pairs but without its own seed the server has uniform words."""
    left = NAMES[:4]
    federation.share()
    inputs = dict(federation.masked())
    federation.settled(left)
    lost = NAMES[4]
    seeds = {name: answer.seeds[lost] for name, answer in federation.answers.items()}
    bare = with_pair_masks(inputs[lost], seeds, lost, remove=True)
    assert not np.array_equal(bare["weight"], federation.words(lost)["weight"])
    assert all(lost not in answer.shares for answer in federation.answers.values())


@pytest.mark.parametrize("change", ["missing", "changed", "swapped"])
def test_an_input_needs_the_share_of_every_partner(federation, change):
    federation.share()
    boxes = federation.boxes_of("site-1")
    if change == "missing":
        boxes.pop("site-2")
    elif change == "changed":
        boxes["site-2"] = boxes["site-2"][:-1] + bytes([boxes["site-2"][-1] ^ 1])
    else:
        boxes["site-2"], boxes["site-3"] = boxes["site-3"], boxes["site-2"]
    with pytest.raises(MessageError, match="site-2"):
        federation.sites["site-1"].masked(federation.words("site-1"), boxes)


def test_notes_are_made_before_an_answer_leaves(federation):
    federation.share()
    federation.masked()
    federation.settled()
    notes = federation.notes["site-1"]
    assert f"nonce {federation.roster.nonces['site-1'].hex()}" in notes
    assert notes[f"contributors {federation.roster.digest.hex()}"] == ", ".join(NAMES)


def test_a_nonce_that_was_used_before_ends_the_attempt():
    notes = MemoryNotes()
    given = (RUN, JOB, RunKeys(), partners(), Rules(), notes)
    SiteAttempt("site-1", *given, random_bytes=bytes)
    with pytest.raises(MessageError, match="nonce"):
        SiteAttempt("site-1", *given, random_bytes=bytes)


@pytest.mark.parametrize(
    "answer", [Unmasking({}, {}), Unmasking(dict.fromkeys(NAMES, bytes(66)), {"site-1": bytes(32)})]
)
def test_an_answer_about_other_contributors_loses_the_sum(federation, answer):
    federation.share()
    federation.masked()
    federation.settled()
    federation.answers["site-2"] = answer
    with pytest.raises(MessageError, match="site-2"):
        federation.opened()


def test_a_site_that_is_not_in_the_sum_cannot_answer(federation):
    federation.share()
    federation.masked(NAMES[:4])
    federation.settled()
    federation.answers[NAMES[4]] = federation.answers[NAMES[0]]
    with pytest.raises(MessageError, match=NAMES[4]):
        federation.opened()


def test_a_site_that_sends_more_than_the_bound_is_noticed(federation):
    for values in federation.values.values():
        values["bias"] = np.array([4.0])
    federation.share()
    inputs = federation.masked()
    inputs["site-1"]["bias"] = inputs["site-1"]["bias"] + np.uint64(2**40)
    federation.settled()
    with pytest.raises(MessageError, match="bound"):
        federation.opened()


@pytest.mark.parametrize("seed", range(20))
def test_random_losses_give_the_exact_sum_of_a_sufficient_roster_or_nothing(seed):
    """A site may be lost before each phase. What is opened is the sum of those whose input came, at least t."""
    chance = random.Random(seed)
    federation = Federation(NAMES[: chance.choice((3, 4, 5))], Rules(colluding=chance.choice((0, 1))))
    names, needed = federation.names, federation.rules.needed(len(federation.names))

    def left(of):
        return [name for name in of if chance.random() > 0.12]

    try:
        federation.share(left(names))
        federation.masked(left(federation.boxes))
        chosen = list(federation.inputs)
        signatures = {name: federation.sites[name].consent(chosen) for name in left(chosen)}
        federation.answers = {name: federation.sites[name].unmasking(signatures) for name in left(signatures)}
        opened = federation.opened()
    except MessageError:
        return
    assert len(chosen) >= max(needed, 3)
    assert same(opened, federation.expected(chosen))


def test_most_random_losses_of_the_property_are_survived():
    """The property above is not empty: without losses every roster gives its sum."""
    for size in (3, 4, 5):
        federation = Federation(NAMES[:size])
        federation.share()
        federation.masked()
        federation.settled()
        assert same(federation.opened(), federation.expected(NAMES[:size]))


def test_rosters_are_values(federation):
    assert Roster(QUANTITY, federation.joins, federation.roster.nonces).sites == tuple(sorted(NAMES))
