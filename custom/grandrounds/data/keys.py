"""One key for each class, patient, lesion and site, however it is spelled.

The same key splits, counts, bootstraps and compares. A name's key is its canonical text. Names that differ in canonical text
but agree in :func:`comparison_key` (``Nevus`` and ``nevus``, ``007`` and ``7``, ``site_1`` and ``site-1``) are near: whether
they are one is for a person to say, because pseudonyms and hashes are near by chance. They are refused unless one of two
options says which:

    --merge patient               near patients are one; the most frequent spelling is kept
    --merge label:Nevus=nevus     this spelling stands for that one; with nothing after ``=`` it is a missing value
    --distinct patient            near patients are different people
    --distinct label:none         this word is a name of its own, neither missing nor a spelling of another
"""

from __future__ import annotations

import hashlib
import re
import shlex
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, get_args

from grandrounds.errors import ConfigurationError, DataError
from grandrounds.protocol.names import SERVER

KEY_RULE = 1
"""Version of the rule; two versions in one run would make two keys of one name.

It stays where no ordinary name gets another key. So it did when ``\\N`` became missing, and when names in quotation marks,
UTF-8 read as Windows-1252 and a dotted capital I became near, about which one is asked.
"""
RULE_VALUE = "key_rule"
"""Where a partition and the payload of a task state the version."""
Kind = Literal["label", "patient", "lesion", "site", "source"]
"""Whose names they are: the column of a table."""

_MISSING = frozenset({
    "", "nan", "-nan", "null", "<na>", "nat", "#n/a", "#n/a n/a", "#na", "#nv", "1.#ind", "-1.#ind", "1.#qnan", "-1.#qnan",
    "\\n",
})  # fmt: skip
"""What software writes where a value is missing: pandas, R, Excel, databases; it is missing in every column."""
_ERROR = re.compile(r"#[¡¿]?[\w/]+[!?]|#getting_data|err:\d+", re.IGNORECASE)
_PERHAPS_MISSING = frozenset({"na", "n/a", "n.a.", "none", "nil", "unknown", "-", "--", "---", "?", "??", ".", "..."})
"""What people write for it. A person or a hospital is not called so, a class may be: ``none`` is a finding, too."""
_NUMBER = re.compile(r"([+-]?)0*([0-9]+)(?:[.,]0*)?")
_SEPARATORS = re.compile(r"[\s_.,/\\\u002d\u2010-\u2015\u2212]+")
_AROUND = " \t\r\n'\"`\u00b4\u2018\u2019\u201a\u201b\u201c\u201d\u201e\u201f\u00ab\u00bb\u2039\u203a"
"""Blanks and quotation marks at the ends of a name, such as the one by which spreadsheets mark a text."""
_SHOWN = 3
ROWS = frozenset({"pooled", "mean"})
"""Names of rows below those of sites in tables of scores."""
_TAKEN = ROWS | {SERVER, "partition.json"}
"""And names in a partition's folder that are no site."""
_LONGEST_ID = 64


def canonical(text: str) -> str:
    r"""The text in NFC without white space, byte-order marks and invisible characters at its ends.

    Example:
        >>> canonical("\ufeff na\u0308vus\u00a0")
        'nävus'
    """
    if text.isascii() and text.isprintable():
        return text.strip()
    composed = unicodedata.normalize("NFC", text)
    kinds = map(unicodedata.category, composed)
    inside = [place for place, kind in enumerate(kinds) if kind not in ("Cf", "Cc", "Zs", "Zl", "Zp")]
    return composed[inside[0] : inside[-1] + 1] if inside else ""


def comparison_key(text: str) -> str:
    """What near names have in common, whatever their case, width, quotes, leading zeros, ``.0`` and kind of separator.

    A run of separators becomes one blank and is never deleted, so ``A-1`` and ``A1`` are not near. Only whole numbers are
    read as numbers: ``1e10`` is a pseudonym. UTF-8 that was taken for Windows-1252 is read as UTF-8.

    Example:
        >>> comparison_key("007"), comparison_key("7,0"), comparison_key("Basal_Cell"), comparison_key("1e10")
        ('7', '7', 'basal cell', '1e10')
    """
    with suppress(UnicodeError):
        text = text.encode("cp1252").decode()
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold()).replace("i\u0307", "i")
    visible = "".join(letter for letter in folded if unicodedata.category(letter) != "Cf").strip(_AROUND)
    if number := _NUMBER.fullmatch(visible):
        return f"{'-' if number[1] == '-' else ''}{number[2]}"
    return _SEPARATORS.sub(" ", visible.strip("_., /\\"))


def is_error_value(text: str) -> bool:
    """Whether a text is what a spreadsheet shows where a formula fails, in any of its languages.

    Example:
        >>> is_error_value("#REF!"), is_error_value("#DIV/0!"), is_error_value("#¿NOMBRE?"), is_error_value("#1")
        (True, True, True, False)
    """
    return bool(_ERROR.fullmatch(canonical(text)))


def is_missing(text: str, kind: Kind = "patient") -> bool:
    """Whether a value is missing: nothing, or a word for it; of a ``label`` only the words that cannot be a class.

    Example:
        >>> is_missing("NaN"), is_missing("None"), is_missing("None", "label")
        (True, True, False)
    """
    word = canonical(text).casefold()
    return word in _MISSING or is_error_value(word) or (kind != "label" and word in _PERHAPS_MISSING)


@dataclass(frozen=True)
class KeyChoices:
    """What a person said about near names: the entries of ``--merge`` and ``--distinct``.

    Raises:
        ConfigurationError: if an entry names no column, or is not of the form that the option has.
    """

    merge: tuple[str, ...] = ()
    distinct: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for option, entries, form in (("merge", self.merge, "OLD=NEW"), ("distinct", self.distinct, "NAME")):
            for entry in entries:
                kind, colon, names = entry.partition(":")
                old = names.partition("=")[0] if option == "merge" else names
                if kind not in get_args(Kind) or (colon and not (old.strip() and (option != "merge" or "=" in names))):
                    kinds = ", ".join(get_args(Kind))
                    raise ConfigurationError(f"{option}: expected one of {kinds}, or with :{form} added, got {entry!r}")

    def distinguishes_all(self, kind: Kind) -> bool:
        """Whether near names of a kind are different ones."""
        return kind in self.distinct

    def renamed(self, kind: Kind) -> dict[str, str]:
        """By spelling the one that it stands for; empty for a missing value."""
        pairs = (entry.removeprefix(f"{kind}:").partition("=") for entry in self.merge if entry.startswith(f"{kind}:"))
        return {canonical(old): canonical(new) for old, _, new in pairs}

    def names(self, kind: Kind) -> frozenset[str]:
        """The words that are names of their own."""
        return frozenset(canonical(entry.partition(":")[2]) for entry in self.distinct if entry.startswith(f"{kind}:"))

    def require_used(self, kind: Kind, names: Iterable[str]) -> None:
        """Refuse an entry about a name that does not occur.

        Raises:
            ConfigurationError: naming option and name.
        """
        known = {canonical(name) for name in names}
        for option, stated in (("merge", self.renamed(kind)), ("distinct", self.names(kind))):
            for name in stated:
                if name not in known:
                    raise ConfigurationError(f"{option} {kind}:{name}: there is no {kind} {name!r}; correct the option")


NO_CHOICES = KeyChoices()
NO_WORDS: Mapping[str, str] = MappingProxyType({})


def key_of(kind: Kind, name: str, choices: KeyChoices = NO_CHOICES, words: Mapping[str, str] = NO_WORDS) -> str:
    """The key of one name, whatever other names there are; empty for a missing value.

    Args:
        kind: whose name it is.
        name: as it is written.
        choices: what was said about single names.
        words: names that are right as they are, by their canonical text.

    Example:
        >>> key_of("patient", " N/A "), key_of("label", "NA", words={"NA": "NA"})
        ('', 'NA')
    """
    text = canonical(name)
    text = choices.renamed(kind).get(text, text)
    if text in words:
        return words[text]
    return "" if text not in choices.names(kind) and is_missing(text, kind) else text


def settle(
    kind: Kind,
    names: Iterable[str],
    where: str,
    choices: KeyChoices = NO_CHOICES,
    words: Sequence[str] = (),
    in_file: bool = False,
) -> dict[str, str]:
    """The key of each spelling that occurs; empty for a missing value.

    Args:
        kind: whose names they are.
        names: as they are written, each as often as it occurs.
        where: file, for errors.
        choices: what was said about near names.
        words: names that are right as they are, those of a given vocabulary.
        in_file: whether choices are entries of a site's ``grandrounds.json``, and not options of a command; for errors.

    Raises:
        DataError: if names are near, or a label may be a missing value, and nothing was said about it; at most three pairs
            are named, and how many there are.

    Example:
        >>> settle("patient", ["7", "7", "007", "nan"], "t.csv", KeyChoices(merge=("patient",)))
        {'7': '7', '007': '7', 'nan': ''}
    """
    counts = Counter(names)
    right = {canonical(word): word for word in words}
    keys = {spelling: key_of(kind, spelling, choices, right) for spelling in counts}
    if kind == "label":
        _refuse_ambiguous(keys, counts, where, choices.names(kind) | set(words))
    if choices.distinguishes_all(kind):
        return keys
    often: Counter[str] = Counter(dict.fromkeys(words, 0))
    for spelling, key in keys.items():
        often[key] += counts[spelling] if key else 0
    near = _near([key for key in often if key and key not in choices.names(kind)])
    if near and kind not in choices.merge:
        raise DataError(_refusal(kind, near, where, in_file))
    kept = {
        key: max(group, key=lambda candidate: (candidate in words, often[candidate])) for group in near for key in group
    }
    return {spelling: kept.get(key, key) for spelling, key in keys.items()}


def site_id(name: str) -> str:
    """The name of a site in folders and messages: letters, digits, ``.``, ``_`` and ``-``; different names stay different.

    A name that is one already stays. Another, one that a partition's folder has a use for, or a very long one becomes what
    is readable of it and 8 digits of its SHA-256; where people read, its own name is shown.

    Example:
        >>> site_id("Leeds-2"), site_id("Köln")
        ('Leeds-2', 'Koln-x430b4fc5')
    """
    text = canonical(name)
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", text) and text not in _TAKEN and len(text) <= _LONGEST_ID:
        return text
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    readable = re.sub(r"[^A-Za-z0-9._]+", "-", plain)[: _LONGEST_ID - 10].strip("-._")
    return f"{readable or 'site'}-x{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _near(names: Sequence[str]) -> list[list[str]]:
    """The groups of near names, in the order in which they occur."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(comparison_key(name), []).append(name)
    return [group for group in groups.values() if len(group) > 1]


def _refuse_ambiguous(keys: Mapping[str, str], counts: Mapping[str, int], where: str, own: frozenset[str]) -> None:
    for spelling, key in keys.items():
        if key.casefold() in _PERHAPS_MISSING and key not in own:
            word = f"label:{key}"
            raise DataError(
                f"{where}: label {key!r} ({counts[spelling]} images) may be a class or a missing label; add --distinct "
                f"{shlex.quote(word)} (distinct={[word]}) if it is a class, or --merge {shlex.quote(word + '=')} "
                f"(merge={[word + '=']}) if it is missing"
            )


def _refusal(kind: Kind, near: Sequence[Sequence[str]], where: str, in_file: bool) -> str:
    pairs = ", ".join(" and ".join(map(repr, group[:2])) for group in near[:_SHOWN])
    more = f" ({len(near)} such pairs, the first {_SHOWN} are named)" if len(near) > _SHOWN else ""
    merge, distinct = (f"--{option} {kind} ({option}=['{kind}'])" for option in ("merge", "distinct"))
    if in_file:
        merge, distinct = (f'"{option}": ["{kind}"]' for option in ("merge", "distinct"))
        merge += " to the data set's entry in grandrounds.json"
    question = f"is it one {kind} in two spellings: {pairs}{more}?"
    return f"{where}: {question} If so, add {merge}; if they are different, add {distinct}"
