"""Words of a column that may not mean what they say: one table of kinds, each with its question and the options that answer.

A doubt looks at the keys of a column, after ``--merge`` and ``--distinct`` were followed, and asks by name. Nothing is
guessed: the answer is an option that can be typed as it is printed, or a cell to correct.
"""

from __future__ import annotations

import re
import shlex
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from grandrounds.data.keys import KeyChoices, Kind, comparison_key
from grandrounds.data.words import as_boolean, name_parts, word_key, words
from grandrounds.errors import DataError
from grandrounds.protocol.task import Task

MANY_CLASSES = 20
"""More values than these are classes only if they have several images each."""
FEW_IMAGES = 10
"""Images of a patient, or of a class on average, below which nothing can be said of them."""
RARER = 4
"""A word this many times rarer than a near one may be a typing error; a patient this many times more frequent, no person."""
_SHOWN = 3
_NINES = re.compile(r"(-1|-9+|9{2,})(?:\.0)?")
"""Numbers that stand for what is not known, where the number before them is no label."""
_NO_ENTRY = re.compile(r"k[./] ?a\.?", re.IGNORECASE)
"""Keine Angabe; KA is a class."""
_DATE = re.compile(r"\d{4}-\d\d-\d\d|\d{1,2}(?:-|\. ?)[^\W\d]+\.?")
"""As tables show a date that a spreadsheet has made of a text, if its word is a month's."""


@dataclass(frozen=True)
class Values:
    """The keys of a column.

    Attributes:
        counts: how often each occurs; without missing ones.
        task: what a label is.
        partners: of each patient, the labels of the images.
        in_cells: whether they were typed in a table; a folder is named on purpose.
    """

    counts: Counter[str]
    task: Task
    partners: Mapping[str, Counter[str]] = field(default_factory=dict)
    in_cells: bool = True


def require_no_doubt(kind: Kind, values: Values, where: str, choices: KeyChoices, known: Sequence[str] = ()) -> None:
    """Ask about the first kind of doubt that a column raises.

    Args:
        kind: whose names they are.
        values: of the column.
        where: the table or folder, for errors.
        choices: what was said; ``--distinct KIND`` answers all, ``--distinct KIND:NAME`` what is asked about a name.
        known: names of a given vocabulary, which are right.

    Raises:
        DataError: with the question and the options that answer it.
    """
    if choices.distinguishes_all(kind):
        return
    right = choices.names(kind) | {*known}
    asked = replace(values, counts=Counter({name: n for name, n in values.counts.items() if name not in right}))
    for doubt in DOUBTS.get(kind, ()) if asked.counts else ():
        if question := doubt(asked):
            raise DataError(f"{where}: {question}")


def _answers(kind: Kind, pairs: Mapping[str, str], if_merged: str, if_distinct: str) -> str:
    """The two options that answer a question about names, as the command line and Python write them."""
    merge = [f"{kind}:{old}={new}" for old, new in pairs.items()]
    distinct = [f"{kind}:{name}" for name in pairs]
    if any("," in entry for entry in merge):  # the command line separates entries by commas
        return (
            f"correct the column {kind}, or in Python add merge={merge} {if_merged}, distinct={distinct} {if_distinct}"
        )
    return (
        f"add --merge {shlex.quote(','.join(merge))} (merge={merge}) {if_merged}, or --distinct "
        f"{shlex.quote(','.join(distinct))} (distinct={distinct}) {if_distinct}"
    )


def _numbers(values: Values) -> str:
    """Measurements, for which there is no loss here, and names of single images."""
    names, images = len(values.counts), values.counts.total()
    if names <= MANY_CLASSES // 2 or values.task.holds(values.counts):
        return ""
    numbers = [_number(name) for name in values.counts]
    few = names > MANY_CLASSES and images < FEW_IMAGES * names
    if None not in numbers and (few or any(number != int(number) for number in numbers if number is not None)):
        return (
            f"label has {names} values in {images} images and all are numbers: there is no regression here; write a class, "
            "such as a range, in the column label, or add --distinct label (distinct=['label']) if each value is a class"
        )
    if names > MANY_CLASSES and 2 * names > images:
        return (
            f"label has {names} values in {images} images, the first {', '.join(map(repr, list(values.counts)[:_SHOWN]))}: "
            "name another column by --columns label=HEADING, or add --distinct label (distinct=['label']) if each is a class"
        )
    return ""


def _booleans(values: Values) -> str:
    """Yes and no in several words."""
    by_meaning: dict[str, list[str]] = {}
    for name, _ in values.counts.most_common():
        by_meaning.setdefault(as_boolean(name), []).append(name)
    others = by_meaning.pop("", [])
    pairs = {old: own[0] for own in by_meaning.values() for old in own[1:]}
    if not pairs or len(others) > sum(map(len, by_meaning.values())):
        return ""
    named = "; ".join(" and ".join(map(repr, own)) for own in by_meaning.values() if len(own) > 1)
    return f"is it one label in several words: {named}? {_answers('label', pairs, 'if so', 'if not')}"


def _near_words(values: Values) -> str:
    """A rare word within one edit of a frequent one."""
    pairs: dict[str, str] = {}
    for rare, count in values.counts.items():
        often = (name for name, other in values.counts.items() if other >= RARER * count and _one_edit(rare, name))
        if name := next(often, ""):
            pairs[rare] = name
    named = ", ".join(
        f"{rare!r} ({values.counts[rare]} images) and {name!r} ({values.counts[name]})"
        for rare, name in list(pairs.items())[:_SHOWN]
    )
    return f"is it one name in two spellings: {named}? {_answers('label', pairs, 'if so', 'if not')}" if pairs else ""


def _no_finding(values: Values) -> str:
    """A finding that says that there is none."""
    none = next(iter(values.task.reserved), "")
    names = [name for name in values.counts if none and name != none and word_key(name) in words("no_finding")]
    named = ", ".join(f"{name!r} ({values.counts[name]} images)" for name in names)
    answers = _answers("label", dict.fromkeys(names, none), "if it says that there is none", "if it is a finding")
    return f"{named} may be no finding, but the absence of all; {answers}" if names else ""


def _unknown(values: Values) -> str:
    """A word for a label that is not known, or a number that stands for it, but not beside 1 alone, where -1 is no."""
    numbers = {_number(own) for own in values.counts}
    nines = {own for own in values.counts if _NINES.fullmatch(own) and float(own) - 1 not in numbers}
    said = {own for own in values.counts if word_key(own) in words("not_known") or _NO_ENTRY.fullmatch(own)}
    return _perhaps_missing(values, said if numbers == {-1, 1} else said | nines, "may be a class or a missing label;")


def _dates(values: Values) -> str:
    """A date among other labels."""
    dates = {name for name in values.counts if _DATE.fullmatch(name) and {*name_parts(name)} <= words("months")}
    text = "is a date, as spreadsheets make of 2-3; write the label in cells of the format text, or"
    return _perhaps_missing(values, dates if len(dates) < len(values.counts) else set(), text)


def _perhaps_missing(values: Values, asked: set[str], text: str) -> str:
    names = sorted(asked) if values.in_cells else []
    named = ", ".join(f"{name!r} ({values.counts[name]} images)" for name in names)
    answers = _answers("label", dict.fromkeys(names, ""), "if it is missing", "if it is a class")
    return f"label {named} {text} {answers}" if names else ""


def _placeholders(values: Values) -> str:
    """A word for an unknown patient, which is no one person."""
    for name, count in values.counts.most_common():
        others = [other for own, other in values.counts.items() if own != name]
        blank = len({*comparison_key(name)}) <= 1 or word_key(name) in words("placeholders")
        if blank and count > 1 and count >= RARER * statistics.median(others or [1]):
            answers = _answers("patient", {name: ""}, "if these patients are not known", "if it is one person")
            return f"{count} of {values.counts.total()} images have the patient {name!r}; {answers}"
    return ""


def _not_patients(values: Values) -> str:
    """One name for all images, or the label itself."""
    names, images = list(values.counts), values.counts.total()
    labels = [next(iter(values.partners[name]), "") for name in names if len(values.partners.get(name, ())) == 1]
    same = len(names) == len(labels) == len({*labels}) > 1 and min(values.counts.values()) >= FEW_IMAGES
    if same:
        return (
            f"each label has one patient of its own ({names[0]!r} all images of {labels[0]!r}): add --columns patient= "
            "(columns=['patient=']) if this column is not the patient, or --distinct patient (distinct=['patient']) if it is"
        )
    if len(names) > 1 or images < FEW_IMAGES:
        return ""
    answers = _answers("patient", {names[0]: ""}, "if the patients are not known", "if it is one person")
    return f"1 patient in {images} images, {names[0]!r}: is this column or pattern the patient? If not, {answers}"


DOUBTS: Mapping[Kind, tuple[Callable[[Values], str], ...]] = MappingProxyType(
    {
        "label": (_numbers, _unknown, _dates, _booleans, _no_finding, _near_words),
        "patient": (_placeholders, _not_patients),
    }
)
"""The kinds of doubt about each column, in the order in which they are asked."""


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", "."))
    except ValueError:
        return None


def _one_edit(first: str, second: str) -> bool:
    """Whether a letter of a longer word was added, left out, changed or exchanged with the next.

    Example:
        >>> _one_edit("melanom", "Melanoma"), _one_edit("grade 1", "grade 2"), _one_edit("type a", "type b")
        (True, False, False)
    """
    one, two = comparison_key(first).split(), comparison_key(second).split()
    apart = [(left, right) for left, right in zip(one, two, strict=False) if left != right]
    if len(one) != len(two) or len(apart) != 1:
        return False
    left, right = apart[0]
    if max(len(left), len(right)) < 5:
        return False
    start = next((n for n, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
    left, right = left[start:], right[start:]
    while left and right and left[-1] == right[-1]:
        left, right = left[:-1], right[:-1]
    letters = (left + right).isalpha()
    return letters and (max(len(left), len(right)) == 1 or (len(left) == len(right) == 2 and left == right[::-1]))
