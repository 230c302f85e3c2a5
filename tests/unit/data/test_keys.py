import itertools
import shlex
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grandrounds.data.keys import (
    KeyChoices,
    canonical,
    comparison_key,
    is_missing,
    settle,
    site_id,
)
from grandrounds.errors import ConfigurationError, DataError

SPELLINGS = ["nävus", " nävus", "na\u0308vus", "\ufeffnävus\u00a0", "\u200bnävus\u3000\t"]
NEAR = [
    ("Nevus", "nevus"),
    ("007", "7"),
    ("123", "123.0"),
    ("7,00", "7"),
    ("+7", "7"),
    ("Basal cell", "basal_cell"),
    ("K-ln", "K\u2013ln"),
    ("Straße", "STRASSE"),
    ("\uff10\uff17", "7"),
    ("ne\u00advus", "nevus"),
    ("white cell", "white\u00a0cell"),
    ("nevus.", "nevus"),
    ("4,5", "4.5"),
    ("'0007", "0007"),
    ("'a'", "a"),
    ("\u201enevus\u201c", "nevus"),
    ("\u00abnevus\u00bb", "nevus"),
    ("n\u00c3\u00a4vus", "n\u00e4vus"),
    ("n\u00c3\u00a9vus", "N\u00c9VUS"),
    ("\u0130ltihap", "iltihap"),
]
APART = [
    ("A-1", "A1"),
    ("1e10", "10000000000"),
    ("-7", "7"),
    ("HER2+", "HER2-"),
    ("1.1", "1.10"),
    ("Köln", "Käln"),
    ("O'a", "Oa"),
]


@pytest.mark.parametrize("text", SPELLINGS)
def test_spellings_that_look_alike_are_one_text(text):
    assert canonical(text) == unicodedata.normalize("NFC", "nävus")


@given(st.text())
def test_a_canonical_text_stays(text):
    assert canonical(canonical(text)) == canonical(text)


@given(st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9 ._/-]*[A-Za-z0-9])?", fullmatch=True))
def test_plain_names_stay_byte_for_byte(text):
    assert canonical(text) == text


@pytest.mark.parametrize(("one", "other"), NEAR)
@pytest.mark.parametrize("kind", ["label", "patient", "lesion", "site"])
def test_near_names_are_refused_with_both_spellings_and_options(kind, one, other):
    with pytest.raises(DataError) as refusal:
        settle(kind, [one, other, other], "t.csv")
    for part in (repr(one), repr(other), f"--merge {kind}", f"--distinct {kind}", "t.csv"):
        assert part in str(refusal.value)
    merged = settle(kind, [one, other, other], "t.csv", KeyChoices(merge=(kind,)))
    assert set(merged.values()) == {canonical(other)}
    assert len(set(settle(kind, [one, other], "t.csv", KeyChoices(distinct=(kind,))).values())) == 2


@pytest.mark.parametrize(("one", "other"), APART)
def test_different_names_are_not_near(one, other):
    assert comparison_key(one) != comparison_key(other)


def test_one_pair_can_be_merged_and_one_kept_apart():
    names = ["Nevus", "nevus", "a-1", "a_1"]
    choices = KeyChoices(merge=("label:Nevus=nevus",), distinct=("label:a-1",))
    keys = settle("label", names, "t.csv", choices)
    assert [keys[name] for name in names] == ["nevus", "nevus", "a-1", "a_1"]


def test_a_given_vocabulary_decides_which_spelling_is_kept():
    keys = settle("label", ["Nevus", "Nevus"], "t.csv", KeyChoices(merge=("label",)), words=("nevus",))
    assert keys == {"Nevus": "nevus"}


def test_many_collisions_are_counted_and_few_named():
    names = [text for number in range(500) for text in (f"{number:05d}", f"{number}.0")]
    with pytest.raises(DataError, match="500 such pairs") as refusal:
        settle("patient", names, "t.csv")
    assert len(str(refusal.value)) < 400


@pytest.mark.parametrize("word", ["", " ", "nan", "NaN", "NULL", "<NA>", "NaT", "#N/A", "\\N"])
def test_what_software_writes_for_missing_is_missing_everywhere(word):
    assert is_missing(word, "label")
    assert settle("patient", [word, "7"], "t.csv") == {word: "", "7": "7"}


@pytest.mark.parametrize("word", ["none", "NA", "n/a", "-", "?", "Unknown"])
def test_a_word_that_may_be_a_class_is_asked_about(word):
    with pytest.raises(DataError) as refusal:
        settle("label", [word, "a"], "t.csv")
    assert f"--distinct {shlex.quote(f'label:{word}')}" in str(refusal.value)
    assert f"--merge {shlex.quote(f'label:{word}=')}" in str(refusal.value)
    assert settle("label", [word], "t.csv", KeyChoices(distinct=(f"label:{word}",))) == {word: word}
    assert settle("label", [word], "t.csv", KeyChoices(merge=(f"label:{word}=",))) == {word: ""}
    assert settle("label", [word], "t.csv", words=(word,)) == {word: word}
    assert settle("patient", [word], "t.csv") == {word: ""}


@pytest.mark.parametrize(
    ("merge", "distinct"),
    [(("patients",), ()), (("label:a",), ()), (("label:=a",), ()), ((), ("label:",)), ((), ("x:a",))],
)
def test_an_entry_of_another_form_is_refused(merge, distinct):
    with pytest.raises(ConfigurationError, match=r"merge|distinct"):
        KeyChoices(merge, distinct)


def test_an_entry_about_nothing_is_refused():
    with pytest.raises(ConfigurationError, match="label:Nevsu"):
        KeyChoices(merge=("label:Nevsu=nevus",)).require_used("label", ["Nevus", "nevus"])


@given(st.lists(st.text(min_size=1), min_size=2, max_size=20))
def test_different_sites_have_different_ids(names):
    kept = {canonical(name) for name in names if canonical(name)}
    assert len({site_id(name) for name in kept}) == len(kept)


def test_ids_are_what_a_federation_accepts_and_stay():
    names = [
        "Köln",
        "K-ln",
        "Käln",
        "東京",
        "St. Mary's, Leeds",
        "../etc",
        "-x",
        "_a",
        "server",
        "x" * 200,
        "pooled",
        "mean",
    ]
    ids = [site_id(name) for name in names]
    assert ids[1] == "K-ln"
    assert all(one[0].isalnum() and one.isascii() and "/" not in one and " " not in one for one in ids)
    assert all(one != other for one, other in itertools.combinations(ids, 2))
    assert [site_id(one) for one in ids] == ids
    assert not {"server", "pooled", "mean"} & {*ids}  # what tables of scores call their own rows
