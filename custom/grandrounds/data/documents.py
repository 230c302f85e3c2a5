"""JSON as people write lists of images, each form read into the cells of a table: a class for each, in a fixed order."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from grandrounds.data.words import is_image_name, split_named
from grandrounds.errors import DataError
from grandrounds.files import unique_names

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
        names = {f"category {entry['id']}": entry["name"] for entry in content["categories"]}
        labels: dict[str, dict[str, None]] = {f"image {own['id']}": {} for own in content["images"]}
        for annotation in content["annotations"]:
            labels[f"image {annotation['image_id']}"][names[f"category {annotation['category_id']}"]] = None
        return [
            {**own, "image": own["file_name"], "label": [*labels[f"image {own['id']}"]]} for own in content["images"]
        ]


class BySplit:
    """``{"training": [...], "test": [...]}``, as of MONAI; ``labels`` may name the numbers of classes."""

    def rows(self, content: Any) -> Iterable[Mapping[str, Any]] | None:
        """See :meth:`Document.rows`."""
        splits = {name: own for name, own in content.items() if split_named(name)} if _is_object(content) else {}
        listed = [(split_named(name), entry) for name, own in splits.items() if isinstance(own, list) for entry in own]
        entries = [(split, entry) for split, entry in listed if _is_object(entry)]  # test images may have no labels
        if not entries or not all("label" in entry for _, entry in entries):
            return None
        names = content["labels"] if _is_object(content.get("labels")) else {}
        names = {str(own): name for name, own in names.items() if isinstance(own, int)} or names
        return [{**own, "label": names.get(str(own["label"]), own["label"]), "split": split} for split, own in entries]


class ByImage:
    """``{"a.png": "x", ...}`` or ``{"a.png": {"label": "x"}, ...}``."""

    def rows(self, content: Any) -> Iterable[Mapping[str, Any]] | None:
        """See :meth:`Document.rows`."""
        if not _is_object(content) or len(content) < 2 or not all(map(is_image_name, content)):
            return None
        return [{"image": name, **(own if _is_object(own) else {"label": own})} for name, own in content.items()]


DOCUMENTS: Sequence[Document] = (Records(), Coco(), BySplit(), ByImage())


def document_rows(data: bytes, path: Path) -> list[dict[str, Any]]:
    """Rows of a file of JSON by headings; what is inside an object has the headings of both, with ``_`` between them.

    Raises:
        DataError: if it is damaged or has another form.
    """
    try:
        content = _parsed(data.decode("utf-8-sig"))
        rows = next((list(rows) for form in DOCUMENTS if (rows := form.rows(content)) is not None), None)
        flat = None if rows is None else [unique_names([*_flat(row)]) for row in rows]
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is no valid JSON in UTF-8: {error}; write it again") from error
    except KeyError as error:
        raise DataError(f"{path} lacks {error}; add it, as COCO has it") from error
    except (TypeError, AttributeError) as error:
        raise DataError(f"{path}: images, annotations and categories must be lists of objects, as of COCO") from error
    if flat is None:
        raise DataError(
            f"{path} lists no images; expected a table with the columns image and label, as objects in a list, "
            "one a line, or COCO"
        )
    return flat


def _parsed(text: str) -> Any:
    lines = [line for line in text.split("\n") if line.strip()]
    read = partial(json.loads, object_pairs_hook=unique_names)
    return read(text) if len(lines) < 2 or not lines[0].rstrip().endswith("}") else [*map(read, lines)]


def _flat(row: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in row.items():
        if _is_object(value):
            yield from _flat(value, f"{above}{name}_")
        else:
            yield f"{above}{name}", json.dumps(value, ensure_ascii=False) if isinstance(value, list) else value


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)
