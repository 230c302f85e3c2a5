"""A page claims what holds in both intervals: where Student's alone is beside 0, it says so with †."""

import json
import re
from collections import Counter, defaultdict

import numpy as np
import pytest

from benchmarks import claims
from benchmarks.results import RE_DIVIDED
from tests.documentation.pages import ROOT, text_of

NUMBER = r"(-?\d?\.\d{2,4})"
ENDS = rf"\[{NUMBER}, {NUMBER}\]"
BOTH = re.compile(rf"{ENDS},? (?:†,? )?corrected {ENDS}")
BESIDE = re.compile(rf"{ENDS}( †)?(?: \({ENDS}| \| {ENDS}|, corrected {ENDS} \(r)")
QUOTED = re.compile(rf"{ENDS}(?!,? (?:† ?|but )?(?:corrected|\(\[))( †)?")
TABLES = re.compile(r"<!-- (\w+): begin -->.*?<!-- \1: end -->", re.DOTALL)
SENTENCE = re.compile(r"\.\s+(?=[A-Z*])|\n\n|\n\* |\|")
POWER = re.compile(r"detectable|\bd \d?\.\d|(?:power|probability) of (?:80 %|\.8)")
OF_ONE_TEST = re.compile(rf"\bd {NUMBER}\b(?!, corrected)")
CORRECTED = re.compile(r"(?<!not )[Cc]orrected")
OF_BOTH = re.compile(rf"{NUMBER}(?: by Student's test)?, corrected (\d?\.\d{{2,4}})")
METHODS = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs/methods").glob("*.md"))
EXPERIMENTS = sorted(
    f"benchmarks/{path.parent.name}/README.md" for path in ROOT.glob("benchmarks/*/configuration.json")
)


def beside_zero(low, high):
    return float(low) > 0 or float(high) < 0


def unmarked(text):
    """Intervals beside 0 whose correction, which follows in a table or in parentheses, is not, and that have no mark."""
    return [f"[{a}, {b}]" for a, b, mark, *rest in BESIDE.findall(text)
            if beside_zero(a, b) and not beside_zero(*[end for end in rest if end]) and not mark]  # fmt: skip


def generated(text):
    """The generated tables of a page."""
    return "".join(found[0] for found in TABLES.finditer(text))


def unmarked_of_benchmark(text):
    """Intervals beside 0 in the text whose correction, in the generated tables, is not, and that have no mark."""
    tables = generated(text)
    corrected = defaultdict(list)
    for a, b, *ends in BOTH.findall(tables):
        for low, high in ((a, b), (b, a)):
            sign = 1 if low == a else -1
            corrected[f"{sign * float(low):z.3f}", f"{sign * float(high):z.3f}"].append(beside_zero(*ends))
    prose = TABLES.sub("", text)
    found = [(a, b, mark, corrected[f"{float(a):z.3f}", f"{float(b):z.3f}"]) for a, b, mark in QUOTED.findall(prose)]
    return unmarked(tables) + [
        f"[{a}, {b}]" for a, b, mark, holds in found if beside_zero(a, b) and holds and not any(holds) and not mark
    ]


def lonely_of_benchmark(text):
    """Intervals of the generated tables without a correction, or all of them if the tables do not say of what they are."""
    tables = generated(text)
    corrected = [ends for found in BOTH.findall(tables) for ends in (found[:2], found[2:])]
    every = re.findall(ENDS, tables)
    return every if every and RE_DIVIDED not in tables else list((Counter(every) - Counter(corrected)).elements())


def power(text):
    """Sentences that say which difference would have been found."""
    return [sentence for sentence in SENTENCE.split(TABLES.sub("", text)) if POWER.search(sentence)]


def of_no_table(sentences, tables):
    """Detectable differences, by Student's test and corrected, that no generated table has."""
    known = {(float(a), float(b)) for a, b in re.findall(rf"d {NUMBER}, corrected {NUMBER}", tables)}
    told = [pair for sentence in sentences for pair in OF_BOTH.findall(sentence)]
    return [pair for pair in told if tuple(map(float, pair)) not in known]


@pytest.mark.parametrize("page", METHODS)
def test_a_method_page_marks_what_holds_in_one_interval_alone(page):
    assert not unmarked(text_of(page))


@pytest.mark.parametrize("page", EXPERIMENTS)
def test_a_benchmark_page_says_of_what_its_intervals_are_and_has_both(page):
    assert not lonely_of_benchmark(text_of(page))


@pytest.mark.parametrize("page", EXPERIMENTS)
def test_a_benchmark_page_marks_what_holds_in_one_interval_alone(page):
    assert not unmarked_of_benchmark(text_of(page))


@pytest.mark.parametrize("page", [*METHODS, *EXPERIMENTS, "benchmarks/papers/README.md"])
def test_a_page_says_which_difference_both_tests_would_have_found(page):
    text, others = text_of(page), "".join(map(text_of, EXPERIMENTS))
    sentences = power(text)
    assert not [one for one in sentences if OF_ONE_TEST.search(one) or not CORRECTED.search(one)]
    assert not of_no_table(sentences, text if page in EXPERIMENTS else others)


def test_what_pages_and_advice_say_of_the_claims_is_current():
    for path, text in claims.written().items():
        assert path.read_text(encoding="utf-8") == text, f"{path}: run python docs/generate.py"


def test_every_claim_has_its_scope_and_a_verdict_and_every_paper_is_there():
    found = claims.read_claims()
    assert len({one.id for one in found}) == len(found)
    assert {one.paper for one in found} >= {"FedPerl", "FedIRM", "Fed-Align-CL", "MDH-FL"}
    for one in found:
        assert one.verdict in claims.VERDICTS
        assert all([one.methods, one.claim, one.data, one.network, one.labels, one.page or one.reason]), one.id
        if one.verdict in (claims.REPRODUCED, claims.CONTRADICTED):
            assert np.prod(one.corrected) > 0, one.id
    assert {name for wanted in claims.OF_ADVICE.values() for name in wanted} <= {one.id for one in found}


def test_a_claim_of_a_row_that_is_not_on_its_page_is_refused(tmp_path):
    (first, *_) = json.loads(claims.CLAIMS.read_text(encoding="utf-8"))["claims"]
    place = tmp_path / "claims.json"
    for change, message in (({"row": "no such row"}, "no row"), ({"after": "no such table"}, "not on the page")):
        place.write_text(json.dumps({"claims": [{**first, **change}]}))
        with pytest.raises(ValueError, match=message):
            claims.read_claims(place)


def test_a_claim_that_expects_less_has_the_opposite_sign_of_its_row():
    (one,) = [one for one in claims.read_claims() if one.id == "together_cells"]
    text = text_of("benchmarks/defaults/README.md")
    assert f"-0{one.mean:.3f}".replace("-00", "-0") + " [-" in text
    assert one.mean > 0
    assert one.verdict == claims.REPRODUCED
