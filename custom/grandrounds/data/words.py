"""Words that people write in tables and names of folders, in six languages; they are data, in ``words.json``.

A word matches in any letter case, with or without accents, and however its parts are separated: ``Patient_ID``,
``patientid`` and ``PATIENT ID`` are one.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from grandrounds.data.keys import comparison_key

_IMAGE = re.compile(r"\.(png|jpe?g|tiff?|bmp|webp|pgm|dcm|dicom)$", re.IGNORECASE)
_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[^\W\d_]+")


def word_key(text: str) -> str:
    """What the spellings of a word have in common.

    Example:
        >>> word_key("Läsions_ID") == word_key("lasionsid")
        True
    """
    return re.sub(r"[\W_]+", "", _without_accents(comparison_key(text)))


def _without_accents(text: str) -> str:
    return "".join(letter for letter in unicodedata.normalize("NFD", text) if not unicodedata.combining(letter))


@cache
def headings(column: str) -> Mapping[str, int]:
    """The usual headings of a column by their key, with their rank: the likeliest have the lowest."""
    by_language = _content()["headings"].get(column, {})
    words = [word for own in by_language.values() for word in own]
    return {word_key(word): rank for rank, word in reversed(list(enumerate(words)))}


@cache
def words(kind: str) -> frozenset[str]:
    """The keys of the words of a kind: ``booleans.true``, ``no_finding``, ``placeholders``, ``totals``."""
    content = _content()
    for part in kind.split("."):
        content = content[part]
    return frozenset(map(word_key, content))


@cache
def is_image_name(text: str) -> bool:
    """Whether a text ends as names of image files do."""
    return _IMAGE.search(text) is not None


def split_of(name: str) -> tuple[str, bool]:
    """The split that a value, file or folder is called after, and whether its name says nothing else.

    Example:
        >>> split_of("test_images"), split_of("ISIC2018_Task3_Training_Input"), split_of("train_val"), split_of("testis")
        (('test', True), ('train', False), ('train', True), ('', False))
    """
    split_by_part = {part: _split_word(part) for part in name_parts(name)}
    named = {*split_by_part.values()} - {""}
    split = "train" if named == {"train", "val"} else next(iter(named)) if len(named) == 1 else ""
    return split, bool(split) and all(own or says_nothing(part) for part, own in split_by_part.items())


def split_named(text: str) -> str:
    """The split that a value is a word for; empty if it is none.

    Example:
        >>> split_named("Training"), split_named("VALIDATION set"), split_named("test strip")
        ('train', 'val', '')
    """
    split, alone = split_of(text)
    return split if alone else ""


def without_split(name: str) -> tuple[str, ...]:
    """The words of a name but for those of a split."""
    return tuple(part for part in name_parts(name) if not _split_word(part))


def says_nothing(part: str) -> bool:
    """Whether a word of a name says nothing of what is there, such as images."""
    return len(part) == 1 or part in words("beside_split")


def name_parts(name: str) -> list[str]:
    """The words of a name, casefolded and without accents: ``TrainSet_01`` are ``train`` and ``set``."""
    return [part.casefold() for part in _PART.findall(_without_accents(name))]


def _split_word(part: str) -> str:
    return next(
        (
            split
            for split in _content()["splits"]
            for word in words(f"splits.{split}")
            if part.startswith(word) and part[len(word) :] in words("beside_split") | {""}
        ),
        "",
    )


def as_boolean(text: str) -> str:
    """``true`` or ``false`` for a word that means it, else nothing."""
    key = word_key(text)
    key = key if key.isalpha() else comparison_key(text)  # -1 and 1+ are no 1
    return next((name for name in ("true", "false") if key in words(f"booleans.{name}")), "")


@cache
def _content() -> Any:
    return json.loads(Path(__file__).with_name("words.json").read_text(encoding="utf-8"))
