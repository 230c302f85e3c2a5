"""What the rows of the benchmarks say of the methods: the claims of ``claims.json``, with figures and verdicts.

A claim names the row of a benchmark's page and what it should show. Its figures are read from there, and its verdict follows
from the interval that allows for the images which divisions share, so that no sentence has figures of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CLAIMS = Path(__file__).with_name("claims.json")
LARGEST_MISSED = 0.05
"""Where a larger difference would have been found with a probability of 80 %, none is shown; else the rows are too few."""
REPRODUCED, CONTRADICTED, EQUAL = "reproduced", "contradicted", "no difference"
FEW, UNTESTED = "underpowered", "untested"
VERDICTS = (REPRODUCED, CONTRADICTED, EQUAL, FEW, UNTESTED)
SHOWN: Mapping[str, str] = {REPRODUCED: "shown", CONTRADICTED: "the opposite is shown"}
"""How the verdict of a claim that no paper makes reads."""
NUMBER = r"-?\d*\.\d+"
FIGURES = re.compile(
    rf"^(?P<mean>{NUMBER})(?: \[(?P<low>{NUMBER}), (?P<high>{NUMBER})\](?: †)?, corrected "
    rf"\[(?P<lower>{NUMBER}), (?P<upper>{NUMBER})\] \(r (?P<share>{NUMBER})\))?"
    rf"(?:; p {NUMBER}; d {NUMBER}, corrected (?P<detectable>{NUMBER}))?$"
)


@dataclass(frozen=True)
class Claim:
    """A claim, its scope and its figures.

    Attributes:
        id: of its own.
        methods: jobs that it is about.
        claim: in words.
        paper: that makes it; empty for a claim of this project.
        published: the paper's figures.
        data: images and sites.
        network: frozen or trained.
        labels: of the training images.
        page: the benchmark; empty where nothing was run.
        score: the column.
        divisions: of one data set, over which the difference is a mean.
        mean: of the difference, positive for the claim; None where nothing was run.
        student: Student's 95 % interval over other divisions of this data set; None of fewer than three.
        corrected: for the images that divisions share.
        detectable: the smallest difference that the corrected interval finds with a probability of 80 %, where it is known.
        verdict: one of ``VERDICTS``.
        reason: why nothing was run.
    """

    id: str
    methods: Sequence[str]
    claim: str
    paper: str
    published: str
    data: str
    network: str
    labels: str
    page: str = ""
    score: str = ""
    divisions: int = 0
    mean: float | None = None
    student: tuple[float, float] | None = None
    corrected: tuple[float, float] | None = None
    detectable: float | None = None
    verdict: str = UNTESTED
    reason: str = ""

    @property
    def figures(self) -> str:
        """The difference with both intervals, as pages write it."""
        if self.mean is None:
            return self.reason
        if self.student is None or self.corrected is None:
            return f"{_short(self.mean)} ({_counted(self.divisions)})"
        beside, stays = (low > 0 or high < 0 for low, high in (self.student, self.corrected))
        mark = " †" if beside and not stays else ""
        ends = f"{_ends(self.student)}{mark}, corrected {_ends(self.corrected)}"
        return f"{_short(self.mean)} {ends} ({_counted(self.divisions)})"

    @property
    def scope(self) -> str:
        """Data, labels and network."""
        return f"{self.data}; labels: {self.labels}; network: {self.network}"

    @property
    def finding(self) -> str:
        """The verdict, in words that fit a claim of the project's own, too."""
        return self.verdict if self.paper else SHOWN.get(self.verdict, self.verdict)

    @property
    def sentence(self) -> str:
        """Claim, scope, figures and verdict in one sentence."""
        return f"{self.claim[0].upper()}{self.claim[1:]} ({self.scope}): {self.finding}; {self.difference}."

    @property
    def difference(self) -> str:
        """The figures with the name of their score."""
        return f"{self.score} {self.figures}" if self.score else self.figures


def read_claims(path: Path = CLAIMS) -> list[Claim]:
    """The claims with the figures of their rows.

    Raises:
        ValueError: naming the claim whose row or column is not on its page, or not once after its heading.
    """
    return [_claim(entry) for entry in json.loads(path.read_text(encoding="utf-8"))["claims"]]


def _claim(entry: Mapping[str, Any]) -> Claim:
    given = {name: entry.get(name, "") for name in ("id", "claim", "paper", "published", "data", "network", "labels")}
    known = {**given, "methods": tuple(entry["methods"])}
    if "untested" in entry:
        return Claim(**known, reason=entry["untested"])
    cells = _row(entry)
    found = FIGURES.match(cells[entry["score"]].strip())
    if not found:
        raise ValueError(f"claim {entry['id']}: {entry['score']} of its row is {cells[entry['score']]!r}")
    value = {name: None if text is None else float(text) for name, text in found.groupdict().items()}
    # A positive difference is for the claim.
    sign = 1 if entry["expects"] == "more" else -1
    student, corrected = (
        None if value[low] is None else tuple(sorted((sign * value[low], sign * value[high])))
        for low, high in (("low", "high"), ("lower", "upper"))
    )
    divisions = entry["divisions"] if "divisions" in entry else int(cells["seeds"])
    return Claim(
        **known,
        page=f"benchmarks/{entry['page']}/README.md",
        score=entry["score"],
        divisions=divisions,
        mean=sign * value["mean"],
        student=student,
        corrected=corrected,
        detectable=value["detectable"],
        verdict=verdict(corrected, value["detectable"]),
    )


def verdict(corrected: tuple[float, float] | None, detectable: float | None) -> str:
    """What an interval of the difference that a claim expects to be positive says of it.

    Example:
        >>> verdict((0.01, 0.05), 0.03), verdict((-0.05, -0.01), 0.03)
        ('reproduced', 'contradicted')
        >>> verdict((-0.01, 0.03), 0.03), verdict((-0.1, 0.2), 0.4), verdict(None, None)
        ('no difference', 'underpowered', 'underpowered')
    """
    if corrected is None:
        return FEW
    low, high = corrected
    if low > 0:
        return REPRODUCED
    if high < 0:
        return CONTRADICTED
    # Of a row without a power the width of the interval says the same.
    missed = max(abs(low), abs(high)) if detectable is None else detectable
    return EQUAL if missed <= LARGEST_MISSED else FEW


def _row(entry: Mapping[str, Any]) -> dict[str, str]:
    """The cells of a claim's row by the titles of its table."""
    text = (ROOT / "benchmarks" / entry["page"] / "README.md").read_text(encoding="utf-8")
    after = entry.get("after", "")
    if after not in text:
        raise ValueError(f"claim {entry['id']}: {after!r} is not on the page of {entry['page']}")
    header: list[str] = []
    for line in text[text.index(after) :].splitlines():
        if line.startswith("| ") and not header:
            header = _cells(line)
        elif not line.startswith("|"):
            header = []
        if line.startswith(f"| {entry['row']}") and entry["score"] in header:
            return dict(zip(header, _cells(line), strict=True))
    raise ValueError(f"claim {entry['id']}: there is no row {entry['row']!r} with {entry['score']} on its page")


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _short(value: float) -> str:
    return f"{value:z.3f}".replace("0.", ".", 1)


def _ends(ends: tuple[float, float]) -> str:
    return f"[{_short(ends[0])}, {_short(ends[1])}]"


def _counted(divisions: int) -> str:
    return "one division" if divisions == 1 else f"{divisions} divisions"


# What pages show.

BEGIN, END = "<!-- claims: begin -->", "<!-- claims: end -->"
OF_ALL = (
    "Each row is of the benchmark that it names; a positive difference is for the claim, its "
    "[intervals](../../docs/methods/README.md#intervals) are of other divisions of the same images, never of other "
    f"hospitals. *No difference*: one above {_short(LARGEST_MISSED)} would probably have been found; *underpowered*: it "
    "might not."
)
OF_PAPERS = (
    "What became of each paper's claims, at the size that was run; a positive difference is for the claim, intervals "
    f"are of other divisions of the same images. *Underpowered*: one above {_short(LARGEST_MISSED)} could have been missed, "
    "or there are fewer than three divisions."
)


def table_of_methods(claims: Sequence[Claim]) -> str:
    """All claims, a row each."""
    rows = [
        f"| `{'`, `'.join(one.methods)}` | {one.claim} | {one.scope} | {_source(one, '../../')} | {one.finding} |"
        for one in claims
    ]
    return "\n".join([OF_ALL, "", "| job | claim | on | difference | verdict |", "|---|---|---|---|---|", *rows])


def table_of_papers(claims: Sequence[Claim]) -> str:
    """The papers' claims, a row each."""
    rows = [
        f"| {one.paper} | {one.claim}{_published(one)} | {one.scope} | {_source(one, '../../')} | {one.verdict} |"
        for one in claims
        if one.paper
    ]
    return "\n".join([OF_PAPERS, "", "| paper | claim | on | here | verdict |", "|---|---|---|---|---|", *rows])


def _published(claim: Claim) -> str:
    return f" ({claim.published})" if claim.published else ""


def _source(claim: Claim, up: str) -> str:
    """The figures of a claim with a link to its rows."""
    page = Path(claim.page).parent.name
    return f"[{page}]({up}{claim.page}): {claim.score} {claim.figures}" if page else claim.figures


def sentences_of(jobs: Sequence[str]) -> Callable[[Sequence[Claim]], str]:
    """The claims about some jobs as a list; one on several data sets has a list of its own."""

    def made(claims: Sequence[Claim]) -> str:
        by_claim: dict[str, list[Claim]] = {}
        for one in claims:
            if set(one.methods) & set(jobs):
                by_claim.setdefault(one.claim, []).append(one)
        return "\n".join(map(_item, by_claim.values()))

    return made


def _item(claims: Sequence[Claim]) -> str:
    """A claim on one data set as a sentence, on several as a heading with a line for each."""
    if len(claims) == 1:
        return f"* {claims[0].sentence}{_page(claims[0])}"
    lines = [
        f"    * {one.finding} on {one.data} (labels: {one.labels}; network: {one.network}): {one.difference}.{_page(one)}"
        for one in claims
    ]
    return "\n".join([f"* {claims[0].claim[0].upper()}{claims[0].claim[1:]}:", *lines])


def _page(claim: Claim) -> str:
    return f" [Rows](../../{claim.page})." if claim.page else ""


PAGES: Mapping[str, Callable[[Sequence[Claim]], str]] = {
    "benchmarks/claims/README.md": table_of_methods,
    "benchmarks/papers/README.md": table_of_papers,
    "docs/methods/ridge.md": sentences_of(["ridge"]),
    "docs/methods/supervised.md": sentences_of(["fedavg", "ssfl", "local"]),
    "docs/methods/fedperl.md": sentences_of(["fedperl"]),
    "docs/methods/fedirm.md": sentences_of(["fedirm"]),
    "examples/rscfed/README.md": sentences_of(["rscfed"]),
    "docs/methods/fed_align_cl.md": sentences_of(["fed_align_cl"]),
    "docs/methods/mutual.md": sentences_of(["mdhfl"]),
}
"""What stands between ``BEGIN`` and ``END`` on each page."""


def page_with_claims(text: str, made: str) -> str:
    """A page with what is between its marks replaced.

    Raises:
        ValueError: if it has not both marks once.
    """
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"a page of claims must have {BEGIN} and {END} once")
    head, _, rest = text.partition(BEGIN)
    return f"{head}{BEGIN}\n\n{made}\n\n{END}{rest.partition(END)[2]}"


def evidence_of(claims: Sequence[Claim], wanted: Sequence[str]) -> str:
    """What ``advise`` says of some claims."""
    by_id = {one.id: one for one in claims}
    return "; ".join(f"{Path(by_id[name].page).parent}: {by_id[name].sentence[:-1]}" for name in wanted)


ADVICE = ROOT / "custom/grandrounds/api/advice.json"
OF_ADVICE: Mapping[str, Sequence[str]] = {
    "one_site": ["together_ham", "together_cells"],
    "own_networks_and_public_images": ["mdhfl_local", "mdhfl_own_heads"],
    "own_networks": ["together_ham", "together_cells"],
    "sites_without_labels": ["fedirm_two", "fedirm_paper"],
    "more_unlabelled_images": ["ssfl_fedavg_cells", "ssfl_fedavg_ham"],
    "updates": ["fedavg_scratch_cells"],
    "else": ["fedavg_scratch_cells", "fedavg_head_ham", "ssfl_ham"],
}
"""The claims that speak for each answer of ``advise``; an answer that is not here has its evidence in its own words."""


def advice_with_evidence(claims: Sequence[Claim]) -> str:
    """``advice.json`` with the evidence of claims."""
    answers = json.loads(ADVICE.read_text(encoding="utf-8"))
    for name, wanted in OF_ADVICE.items():
        answers[name]["evidence"] = evidence_of(claims, wanted)
    return json.dumps(answers, indent=2, ensure_ascii=False) + "\n"


def written(root: Path = ROOT) -> dict[Path, str]:
    """The files that show claims, as they should be."""
    claims = read_claims()
    pages = {
        root / name: page_with_claims((root / name).read_text(encoding="utf-8"), made(claims))
        for name, made in PAGES.items()
    }
    return {**pages, ADVICE: advice_with_evidence(claims)}
