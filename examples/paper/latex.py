"""Tables and text as LaTeX, for the packages booktabs, array and longtable."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from examples.paper.tables import PaperTable

SPECIALS = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "%": r"\%", "#": r"\#", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
    "±": r"$\pm$", "—": "---", "\N{EN DASH}": "--", "“": "``", "”": "''", "\N{RIGHT SINGLE QUOTATION MARK}": "'",
    "\N{NO-BREAK SPACE}": "~", '"': "''",
    "[": "{[}", "]": "{]}",
}  # fmt: skip
"""A bracket at the start of a row would be an argument of the line end before it."""
WIDE = 40
"""Characters from which a column has a fixed width, so that its text is broken into lines."""
PREAMBLE = Path(__file__).with_name("preview.tex")


def latex_text(text: str) -> str:
    r"""A text that LaTeX prints as it is, in one line.

    Example:
        >>> latex_text("50 % of a_b & c")
        '50 \\% of a\\_b \\& c'
    """
    line = "".join(sign if sign.isprintable() else " " for sign in text.replace("\N{NO-BREAK SPACE}", " "))
    return "".join(SPECIALS.get(sign, sign) for sign in line)


def latex_table(table: PaperTable) -> str:
    """A table with its caption and label, which goes on over pages where it is long; it needs booktabs, array, longtable."""
    head = " & ".join(latex_text(name) for name in table.header) + r" \\"
    lines = [
        rf"\begin{{longtable}}{{{_columns(table)}}}",
        rf"\caption{{{latex_text(table.caption)}}}\label{{tab:{table.name.replace('_', '-')}}}\\",
        r"\toprule", head, r"\midrule", r"\endfirsthead",
        r"\toprule", head, r"\midrule", r"\endhead",
        r"\bottomrule", r"\endlastfoot",
        *(" & ".join(latex_text(cell) for cell in row) + r" \\" for row in table.rows),
        r"\end{longtable}",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def latex_paragraphs(paragraphs: Iterable[tuple[str, str]]) -> str:
    """Paragraphs with their titles."""
    return "\n".join(rf"\paragraph{{{latex_text(title)}}} {latex_text(text)}" + "\n" for title, text in paragraphs)


def latex_preview(tables: Sequence[PaperTable], figures: Sequence[tuple[str, str]]) -> str:
    """A document with everything, to look at; ``figures`` are paths and captions."""
    parts = [PREAMBLE.read_text(encoding="utf-8"), r"\input{methods.tex}", r"\begin{landscape}\footnotesize"]
    parts += [rf"\input{{tables/{table.name}.tex}}" for table in tables]
    parts.append(r"\end{landscape}")
    for path, caption in figures:
        picture = rf"\includegraphics{{{path}}}"
        parts += [r"\begin{figure}[p]\centering", picture, rf"\caption{{{latex_text(caption)}}}", r"\end{figure}"]
    return "\n".join([*parts, r"\end{document}", ""])


def _columns(table: PaperTable) -> str:
    """Text to the left, numbers to the right; long texts in lines of one width."""
    longest = [max(len(str(row[n])) for row in (table.header, *table.rows)) for n in range(len(table.header))]
    wide = sum(length > WIDE for length in longest)
    # A page of a landscape has about 160 characters of small print in a line.
    taken = sum(length / 160 + 0.017 for length in longest if length <= WIDE)
    share = max(0.95 - taken - 0.017 * wide, 0.2) / max(wide, 1)
    kinds = []
    for number, length in enumerate(longest):
        if length > WIDE:
            kinds.append(rf">{{\raggedright\arraybackslash}}p{{{share:.2f}\linewidth}}")
        else:
            kinds.append("l" if number < table.text_columns else "r")
    return "".join(kinds)
