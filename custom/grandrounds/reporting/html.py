"""HTML from values: whatever is text is escaped, whatever is an element is not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


Child = str | Html | None
VOID = frozenset({"img", "meta", "br"})


def tag(name: str, /, *children: Child | Iterable[Child], **attributes: str | None) -> Html:
    """An element.

    Args:
        name: of the element.
        children: text, which is escaped, elements, or sequences of either; None is left out.
        attributes: values are escaped; None is left out. A final underscore is dropped (``class_``), others become hyphens.

    Example:
        >>> tag("p", "a < b ", tag("b", "really"), class_="note")
        '<p class="note">a &lt; b <b>really</b></p>'
    """
    pairs = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items() if value is not None}
    start = "".join([f"<{name}", *(f' {key}="{escape(value)}"' for key, value in pairs.items()), ">"])
    return Html(start if name in VOID else f"{start}{_inside(children)}</{name}>")


def table(header: Sequence[str], rows: Sequence[Sequence[Child]], caption: str, text_columns: int = 1) -> Html:
    """A table in a box of its own, which scrolls sideways where the page is narrow.

    Args:
        header: names of the columns.
        rows: as many cells each; the first names the row.
        caption: what the table shows.
        text_columns: how many columns at the left are words; the others are numbers.
    """
    kinds = [None if number < text_columns else "n" for number in range(len(header))]
    head = tag("tr", [tag("th", name, scope="col", class_=kind) for name, kind in zip(header, kinds, strict=True)])
    body = [
        tag(
            "tr",
            tag("th", row[0], scope="row"),
            [tag("td", cell, class_=kind) for cell, kind in zip(row[1:], kinds[1:], strict=True)],
        )
        for row in rows
    ]
    # Above the box and no caption element: that is as narrow as its table, and scrolls with it.
    title = tag("p", caption, class_="caption")
    content = tag("table", tag("thead", head), tag("tbody", body), aria_label=caption)
    return Html(title + tag("div", content, class_="scroll", tabindex="0", role="region", aria_label=caption))


def _inside(children: Iterable[Child | Iterable[Child]]) -> str:
    parts: list[str] = []
    for child in children:
        if child is None:
            continue
        if isinstance(child, Html):
            parts.append(child)
        elif isinstance(child, str):
            parts.append(escape(child, quote=False))
        else:
            parts.append(_inside(child))
    return "".join(parts)
