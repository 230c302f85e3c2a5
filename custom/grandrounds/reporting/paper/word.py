"""A Word document (Office Open XML) of paragraphs and tables, written by hand: it needs no further package."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterable, Sequence
from xml.sax.saxutils import escape

from grandrounds.reporting.paper.tables import PaperTable

_MAIN = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_KIND = "application/vnd.openxmlformats-officedocument.wordprocessingml"
_HEAD = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'
_PARTS = {
    "[Content_Types].xml": (
        f'{_HEAD}<Types xmlns="{_PACKAGE}/content-types">'
        '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        '<Default Extension="xml" ContentType="application/xml"/>'
        f'<Override PartName="/word/document.xml" ContentType="{_KIND}.document.main+xml"/>'
        f'<Override PartName="/word/styles.xml" ContentType="{_KIND}.styles+xml"/></Types>'
    ),
    "_rels/.rels": (
        f'{_HEAD}<Relationships xmlns="{_PACKAGE}/relationships">'
        f'<Relationship Id="rId1" Type="{_OFFICE}/officeDocument" Target="word/document.xml"/></Relationships>'
    ),
    "word/_rels/document.xml.rels": (
        f'{_HEAD}<Relationships xmlns="{_PACKAGE}/relationships">'
        f'<Relationship Id="rId1" Type="{_OFFICE}/styles" Target="styles.xml"/></Relationships>'
    ),
    "word/styles.xml": (
        f'{_HEAD}<w:styles xmlns:w="{_MAIN}"><w:docDefaults><w:rPrDefault><w:rPr>'
        '<w:rFonts w:ascii="Calibri" w:hAnsi="Calibri" w:cs="Calibri"/><w:sz w:val="20"/></w:rPr></w:rPrDefault>'
        '<w:pPrDefault><w:pPr><w:spacing w:after="120"/></w:pPr></w:pPrDefault></w:docDefaults>'
        '<w:style w:type="paragraph" w:default="1" w:styleId="Normal"><w:name w:val="Normal"/></w:style>'
        '<w:style w:type="paragraph" w:styleId="Heading1"><w:name w:val="heading 1"/><w:basedOn w:val="Normal"/>'
        '<w:pPr><w:keepNext/><w:outlineLvl w:val="0"/></w:pPr><w:rPr><w:b/><w:sz w:val="28"/></w:rPr></w:style>'
        '<w:style w:type="paragraph" w:styleId="Caption"><w:name w:val="caption"/><w:basedOn w:val="Normal"/>'
        '<w:pPr><w:keepNext/><w:spacing w:before="240"/></w:pPr><w:rPr><w:b/><w:sz w:val="18"/></w:rPr></w:style>'
        "</w:styles>"
    ),
}
_RULE = '<w:{0} w:val="single" w:sz="{1}" w:space="0" w:color="000000"/>'
_PAGE = (
    '<w:sectPr><w:pgSz w:w="16838" w:h="11906" w:orient="landscape"/>'
    '<w:pgMar w:top="850" w:right="850" w:bottom="850" w:left="850" w:header="0" w:footer="0" w:gutter="0"/></w:sectPr>'
)
_LINE = 15138
"""Twentieths of a point between the margins."""
SHORTEST, LONGEST = 8, 45
"""Characters for which a column of a table is made at least and at most."""
_DATE = (1980, 1, 1, 0, 0, 0)


def word_document(title: str, paragraphs: Iterable[tuple[str, str]], tables: Sequence[PaperTable]) -> bytes:
    """A document of titled paragraphs and numbered tables; the same content always gives the same bytes."""
    body = [_paragraph(title, "Heading1")]
    for name, text in paragraphs:
        body.append(f"<w:p>{_words(f'{name}. ', bold=True)}{_words(text)}</w:p>")
    for number, table in enumerate(tables, 1):
        body += [_paragraph(f"Table {number}. {table.caption}", "Caption"), _table(table)]
    document = f'{_HEAD}<w:document xmlns:w="{_MAIN}"><w:body>{"".join(body)}{_PAGE}</w:body></w:document>'
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in {**_PARTS, "word/document.xml": document}.items():
            entry = zipfile.ZipInfo(name, _DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, text.encode())
    return stream.getvalue()


def _words(text: str, bold: bool = False, small: bool = False) -> str:
    """A run of text, in tables of 8 points; XML has no control characters."""
    line = "".join(sign if sign.isprintable() else " " for sign in text)
    look = ("<w:b/>" if bold else "") + ('<w:sz w:val="16"/>' if small else "")
    shape = f"<w:rPr>{look}</w:rPr>" if look else ""
    return f'<w:r>{shape}<w:t xml:space="preserve">{escape(line)}</w:t></w:r>'


def _paragraph(text: str, style: str) -> str:
    return f'<w:p><w:pPr><w:pStyle w:val="{style}"/></w:pPr>{_words(text)}</w:p>'


def _table(table: PaperTable) -> str:
    rules = f"{_RULE.format('top', 12)}{_RULE.format('bottom', 12)}"
    width, layout = f'<w:tblW w:w="{_LINE}" w:type="dxa"/>', '<w:tblLayout w:type="fixed"/>'
    shape = f"{width}<w:tblBorders>{rules}</w:tblBorders>{layout}"
    widths = _widths(table)
    grid = "".join(f'<w:gridCol w:w="{width}"/>' for width in widths)
    head, *rows = (
        "".join(
            _cell(cell, width, number >= table.text_columns, not line)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for line, row in enumerate([table.header, *table.rows])
    )
    lines = "".join(f"<w:tr><w:trPr><w:cantSplit/></w:trPr>{row}</w:tr>" for row in rows)
    return (
        f"<w:tbl><w:tblPr>{shape}</w:tblPr><w:tblGrid>{grid}</w:tblGrid>"
        f"<w:tr><w:trPr><w:cantSplit/><w:tblHeader/></w:trPr>{head}</w:tr>{lines}</w:tbl><w:p/>"
    )


def _widths(table: PaperTable) -> list[int]:
    """Widths of columns by their longest texts, so that a long one is broken into lines and a number is not."""
    longest = [max(len(row[n]) for row in (table.header, *table.rows)) for n in range(len(table.header))]
    weights = [min(max(length, SHORTEST), LONGEST) + 3 for length in longest]
    return [_LINE * weight // sum(weights) for weight in weights]


def _cell(text: str, width: int, number: bool, head: bool = False) -> str:
    side = '<w:jc w:val="right"/>' if number else ""
    border = f"<w:tcBorders>{_RULE.format('bottom', 6)}</w:tcBorders>" if head else ""
    shape = f'<w:tcPr><w:tcW w:w="{width}" w:type="dxa"/>{border}</w:tcPr>'
    return (
        f'<w:tc>{shape}<w:p><w:pPr><w:spacing w:after="0"/>{side}</w:pPr>{_words(text, head, small=True)}</w:p></w:tc>'
    )
