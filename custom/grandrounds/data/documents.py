"""JSON as people write lists of images, each form read into the cells of a table: a class for each, in a fixed order."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from grandrounds.data.words import split_named
from grandrounds.errors import DataError

SUFFIXES = (".json", ".jsonl", ".ndjson")


class Document(Protocol):
    """A form of JSON that lists images."""

    def rows(self, content: Any) -> Iterable[Mapping[str, Any]] | None:
        """The rows; None if the content has another form.

        Raises:
            KeyError: if it has this form and an entry lacks a part, which is named.
        """


class Records:
    """``[{"image": "a.png", "label": "x"}, ...]``, or such an object in each line."""

    def rows(self, content: Any) -> Iterable[Mapping[str, Any]] | None:
        """See :meth:`Document.rows`."""
        return content if isinstance(content, list) and content and all(map(_is_object, content)) else None


class Coco:
    """``images``, ``annotations`` and ``categories``: an image has the categories of its annotations as a list."""

    def rows(self, content: Any) -> Iterable[Mapping[str, Any]] | None:
        """See :meth:`Document.rows`."""
        if not _is_object(content) or not {"images", "annotations", "categories"} <= content.keys():
            return None
        names = {category["id"]: category["name"] for category in content["categories"]}
        labels: dict[Any, dict[str, None]] = defaultdict(dict)
        for annotation in content["annotations"]:
            labels[annotation["image_id"]][names[annotation["category_id"]]] = None
        return [{**own, "image": own["file_name"], "label": [*labels[own["id"]]]} for own in content["images"]]


class BySplit:
    """``{"training": [...], "test": [...]}``, as of MONAI; ``labels`` may name the numbers of classes."""

    def rows(self, content: Any) -> Iterable[Mapping[str, Any]] | None:
        """See :meth:`Document.rows`."""
        splits = {name: own for name, own in content.items() if split_named(name)} if _is_object(content) else {}
        entries = [(split_named(name), entry) for name, own in splits.items() if isinstance(own, list) for entry in own]
        if not entries or not all(_is_object(entry) and "label" in entry for _, entry in entries):
            return None
        names = content["labels"] if _is_object(content.get("labels")) else {}
        return [{**own, "label": names.get(str(own["label"]), own["label"]), "split": split} for split, own in entries]


class ByImage:
    """``{"a.png": "x", ...}`` or ``{"a.png": {"label": "x"}, ...}``."""

    def rows(self, content: Any) -> Iterable[Mapping[str, Any]] | None:
        """See :meth:`Document.rows`."""
        if not _is_object(content) or len(content) < 2 or not all(Path(name).suffix for name in content):
            return None
        return [{"image": name, **(own if _is_object(own) else {"label": own})} for name, own in content.items()]


FORMS: Sequence[Document] = (Records(), Coco(), BySplit(), ByImage())


def document_cells(data: bytes, path: Path) -> list[list[Any]]:
    """Headings and rows of a file of JSON; what is inside an object has the headings of both, with ``_`` between them.

    Raises:
        DataError: if it is damaged or has another form.
    """
    try:
        content = _parsed(data.decode("utf-8-sig"))
        rows = next((list(rows) for form in FORMS if (rows := form.rows(content)) is not None), None)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is no valid JSON: {error}; write it again") from error
    except (KeyError, TypeError) as error:
        raise DataError(f"{path}: an image, annotation or category lacks {error}; add it, as COCO has it") from error
    if rows is None:
        raise DataError(f"{path} lists no images; write objects with image and label (a list, or one a line), or COCO")
    flat = [dict(_flat(row)) for row in rows]
    names = list(dict.fromkeys(name for row in flat for name in row))
    return [names, *([row.get(name) for name in names] for row in flat)]


def _parsed(text: str) -> Any:
    lines = [line for line in text.splitlines() if line.strip()]
    whole = len(lines) < 2 or not lines[0].rstrip().endswith("}")
    return json.loads(text) if whole else [*map(json.loads, lines)]


def _flat(row: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in row.items():
        if _is_object(value):
            yield from _flat(value, f"{above}{name}_")
        else:
            yield f"{above}{name}", str(value) if isinstance(value, list) else value


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)
