"""Images of one's own after their classes, sites, patients and lesions have got their keys, whichever reader read them."""

from __future__ import annotations

import re
import shlex
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from grandrounds.data.datasets.own_images import OwnImages
from grandrounds.data.datasets.own_options import FolderOptions, OwnImageOptions
from grandrounds.data.doubts import FEW_IMAGES, RARER, Values, require_no_doubt
from grandrounds.data.keys import ROWS, KeyChoices, Kind, canonical, comparison_key, settle, site_id
from grandrounds.data.manifest import Record, require_grouped
from grandrounds.errors import DataError
from grandrounds.protocol.task import Task

JOINED = re.compile(r"\s*[;,|+/&\n]\s*")
"""What people write between several findings of an image."""
SHORTENED = re.compile(r"[+-]?[0-9](?:[.,][0-9]+)?[eE][+][0-9]+")
"""A long number as spreadsheets write it; its last digits are gone, so several people may have the same."""
NAMED = 3
"""Images or spellings that a remark names."""
_REMARKS: Mapping[str, str] = {
    "same_patient_names": "{} names of patients occur at several sites, where they count as different people; if they are "
    "the same, list the images in a table with a column patient",
    "shortened_patients": "{} names of patients are numbers that a spreadsheet has shortened (1,2E+11); different people "
    "may have become one, so export the table with the column patient as text",
    "frequent_patient": "one patient has {0[images]} images, first {0[first]}; add --merge patient:NAME= if this name "
    "stands for unknown patients",
}


def settled_images(images: OwnImages, options: OwnImageOptions, source: str) -> tuple[OwnImages, dict[str, Any]]:
    """Give every class, site, patient, lesion and source its key.

    Args:
        images: the images as they were read.
        options: of the data set, with the choices about near names.
        source: the table or folder, for errors.

    Returns:
        The images, and entries for ``partition.json``: what was respelled, what is missing, and the sites' own names.

    Raises:
        DataError: if names are near and nothing was said about them, a label may be missing or names several labels, a
            site is missing in some rows only, or a patient or lesion turns out to be in two splits or at two given sites.
        ConfigurationError: if a choice is about a name that does not occur.
    """
    settling = _Settling(source, options.choices)
    sites = _sites(images.sites, settling)
    labels = _labels([record.label for record in images.records], options, settling)
    for record, label in zip(images.records, labels, strict=True):
        if label and options.classes:
            try:
                options.kind.require_label(label, options.classes, f"{source}, image {record.image!r}, column label")
            except DataError as error:
                raise DataError(
                    f"{error}; add it to --classes, or leave its images out by --label-map {shlex.quote(f'{label}=')}"
                ) from None
    patients = _patients(images, sites, settling)
    _ask_about_patients(patients, labels, images, options, source)
    lesions = settling.column("lesion", [record.lesion for record in images.records])
    sources = settling.column("source", [record.source for record in images.records])
    records = tuple(
        replace(record, label=label, patient=patient, lesion=lesion, source=origin)
        for record, label, patient, lesion, origin in zip(
            images.records, labels, patients, lesions, sources, strict=True
        )
    )
    if options.contradictions == "refuse":
        _require_consistent_lesions(records, options.kind, images.lines, source)
    if images.splits and options.splits == "keep":
        require_grouped(records, source)
    if options.scheme in ("auto", "given"):
        _require_single_sites(records, sites, images.lines, source)
    names = {site_id(site): site for site in sites}
    if len(names) < len(set(sites)):
        raise DataError(
            f"{source}: two sites would have the same id; rename one of them in the folders or the column site"
        )
    found = {
        "site_names": {identity: name for identity, name in names.items() if identity != name and name not in ROWS},
        "same_patient_names": _named_alike(patients, sites),
        "shortened_patients": len({*filter(SHORTENED.fullmatch, patients)}),
        "frequent_patient": _frequent_patient(records),
    }
    facts = {**settling.facts(), **_unknown_patients(records), **{name: fact for name, fact in found.items() if fact}}
    return replace(images, records=records, sites=tuple(site_id(site) for site in sites)), facts


def key_remarks(description: Mapping[str, Any]) -> list[str]:
    """What ``partition.json`` says about names that a person should know: what counts as missing, and what was merged."""
    remarks = []
    for kind, entry in description.get("keys", {}).items():
        if not isinstance(entry, Mapping):
            continue
        if "missing_words" in entry:
            remarks.append(
                f"{entry['missing_words']} images have a word for a missing value (nan, null, ...) as {kind}"
            )
        changed = entry.get("respelled")
        if isinstance(changed, int):
            remarks.append(f"{changed} spellings of a {kind} are written as others, which stand for the same")
        elif changed:
            pairs = [f"{old!r} as {new!r}" for old, new in changed.items()]
            remarks.append(
                f"a {kind} has another spelling: {', '.join(pairs[:NAMED])}{' ...' if len(pairs) > NAMED else ''}"
            )
    remarks += [text.format(description[name]) for name, text in _REMARKS.items() if name in description]
    if "without_patient" in description:
        unknown = description["without_patient"]
        first = ", ".join(unknown["first"])
        remarks.append(f"{unknown['images']} images have no patient and count as patients of their own, first {first}")
    return remarks


class _Settling:
    """Settles columns and remembers what has changed."""

    def __init__(self, source: str, choices: KeyChoices) -> None:
        self.source, self.choices = source, choices
        self._changed: dict[str, dict[str, str]] = {}
        self._missing: dict[str, int] = {}

    def column(
        self, kind: Kind, values: Sequence[str], scopes: Sequence[str] = (), words: Sequence[str] = ()
    ) -> list[str]:
        """The keys of a column; names of different scopes are different names."""
        self.choices.require_used(kind, values)
        scoped = scopes or [""] * len(values)
        keys: dict[str, dict[str, str]] = {}
        for scope in dict.fromkeys(scoped):
            own = [value for value, own_scope in zip(values, scoped, strict=True) if own_scope == scope]
            keys[scope] = settle(kind, own, f"{self.source}{f', site {scope}' if scope else ''}", self.choices, words)
        settled = [keys[scope][value] for value, scope in zip(values, scoped, strict=True)]
        self._remember(kind, values, settled)
        return settled

    def _remember(self, kind: Kind, values: Sequence[str], settled: Sequence[str]) -> None:
        pairs = list(zip(values, settled, strict=True))
        self._changed[kind] = {value: key for value, key in pairs if key and key != value}
        self._missing[kind] = sum(1 for value, key in pairs if value and not key)

    def facts(self) -> dict[str, Any]:
        """What has changed; of patients and lesions only how many, because the description may be published."""
        content: dict[str, Any] = {}
        for kind, changed in self._changed.items():
            entry: dict[str, Any] = {}
            if changed:
                entry["respelled"] = changed if kind in ("label", "site", "source") else len(changed)
            if self._missing[kind]:
                entry["missing_words"] = self._missing[kind]
            content |= {kind: entry} if entry else {}
        choices = {name: list(values) for name, values in vars(self.choices).items() if values}
        return {"keys": {**content, **choices}} if content or choices else {}


def _sites(sites: Sequence[str], settling: _Settling) -> tuple[str, ...]:
    settled = settling.column("site", sites)
    missing = len(settled) - sum(map(bool, settled))
    if 0 < missing < len(settled):
        word = next(given for given, site in zip(sites, settled, strict=True) if not site)
        raise DataError(
            f"{settling.source}: {missing} images have no site ({word!r} is a missing value); fill it in, or add "
            f"--distinct site:{word} (distinct=['site:{word}']) if a site is called so"
        )
    return tuple(settled) if any(settled) else ()


def _require_single_sites(records: Sequence[Record], sites: Sequence[str], lines: Sequence[int], source: str) -> None:
    """Refuse patients and lesions at several sites: say the sites' own words, a row or image of each, and how many."""
    for kind in ("patient", "lesion"):
        seen: dict[str, dict[str, int]] = {}
        for number, (record, site) in enumerate(zip(records, sites, strict=False)):
            if name := getattr(record, kind):
                seen.setdefault(name, {}).setdefault(site, number)
        divided = {name: places for name, places in seen.items() if len(places) > 1}
        for name, places in divided.items():
            where = [
                f"{site} ({f'line {lines[number]}' if lines else records[number].image})"
                for site, number in places.items()
            ]
            raise DataError(
                f"{source}: {len(divided)} {kind}{'s' if len(divided) > 1 else ''} at several sites, first {name!r}: "
                f"{', '.join(where)}; write one site for each {kind}, other names for different ones, or add --scheme iid "
                "(scheme='iid') to divide the images without the column site"
            )


def _labels(labels: Sequence[str], options: OwnImageOptions, settling: _Settling) -> list[str]:
    task = options.kind
    words = (*options.classes, *task.reserved)
    names = [name for label in labels for name in task.mentioned_in(label)]
    keys = dict(zip(names, settling.column("label", names, words=words), strict=True))
    counts = Counter(name for name in map(keys.__getitem__, names) if name)
    named = Values(counts, task, in_cells=not isinstance(options, FolderOptions))
    require_no_doubt("label", named, settling.source, settling.choices, words)
    _require_single_names([*counts, *words], task, settling.choices, settling.source)
    return [task.respelled(label, keys) for label in labels]


def _require_single_names(names: Sequence[str], task: Task, choices: KeyChoices, source: str) -> None:
    """Refuse a name that is made of others, as ``effusion;mass`` is."""
    if choices.distinguishes_all("label"):
        return
    parts_of = {name: [part for part in map(canonical, JOINED.split(name)) if part] for name in names}
    others = {comparison_key(name) for name in names}
    if task.parts_are_classes:
        others |= _shared(parts_of.values())
    for name, parts in parts_of.items():
        if (
            len(parts) > 1
            and name not in choices.names("label")
            and {comparison_key(name_part) for name_part in parts} <= others
        ):
            raise DataError(_joined(name, parts, task, source))


def _shared(names: Iterable[Sequence[str]]) -> set[str]:
    """The keys of parts that several joined names have."""
    counts = Counter(key for parts in names if len(parts) > 1 for key in {comparison_key(part) for part in parts})
    return {key for key, count in counts.items() if count > 1}


def _joined(name: str, parts: Sequence[str], task: Task, source: str) -> str:
    word = name if "," not in name else ""  # the command line separates entries by commas
    option = f"label:{word}" if word else "label"
    return (
        f"{source}: {name!r} is made of {' and '.join(parts)}, which are {task.nouns} themselves; {task.joined_remedy} "
        f"({'|'.join(parts)}), or add "
        f"--distinct {shlex.quote(option)} (distinct={[option]}) if it is one {task.noun}"
    )


def _patients(images: OwnImages, sites: Sequence[str], settling: _Settling) -> list[str]:
    """The keys of the patients; those of folders belong to their site, whose name they begin with."""
    given = [record.patient for record in images.records]
    local = bool(images.sites) and all(
        patient.startswith(f"{site}/") for patient, site in zip(given, images.sites, strict=True) if patient
    )
    if not local:
        return settling.column("patient", given)
    names = [patient.removeprefix(f"{site}/") for patient, site in zip(given, images.sites, strict=True)]
    keys = settling.column("patient", names, scopes=sites)
    return [f"{site}/{key}" if key else "" for site, key in zip(sites, keys, strict=True)]


def _ask_about_patients(
    patients: Sequence[str], labels: Sequence[str], images: OwnImages, options: OwnImageOptions, source: str
) -> None:
    """Ask about names that may be no patients, where groups are divided by them."""
    if options.scheme == "external" or (images.splits and options.splits == "keep"):
        return
    partners: dict[str, Counter[str]] = {}
    for patient, label in zip(patients, labels, strict=True):
        if patient:
            partners.setdefault(patient, Counter())[label] += 1
    if len({patient.rpartition("/")[2] for patient in partners}) == 1:  # one name at every site
        partners = {next(iter(partners)).rpartition("/")[2]: sum(partners.values(), Counter())}
    counts = Counter({patient: own.total() for patient, own in partners.items()})
    require_no_doubt("patient", Values(counts, options.kind, partners), source, options.choices)


def _require_consistent_lesions(records: Sequence[Record], task: Task, lines: Sequence[int], source: str) -> None:
    """Refuse a lesion with two labels or two patients."""
    for kind, remedy in (
        ("label", "correct the column label of one"),
        ("patient", "correct one, or add --columns lesion= (columns=['lesion=']) if lesions are numbered by patient"),
    ):
        first: dict[str, int] = {}
        apart: dict[str, tuple[int, int]] = {}
        for number, record in enumerate(records):
            if record.lesion and getattr(record, kind):
                earlier = first.setdefault(record.lesion, number)
                both = {getattr(records[earlier], kind), getattr(record, kind)}
                if len(both) > 1 and not (kind == "label" and task.holds(both)):
                    apart.setdefault(record.lesion, (earlier, number))
        for lesion, pair in apart.items():
            shown = " and ".join(
                f"{getattr(records[n], kind)!r} ({f'line {lines[n]}, ' if lines else ''}{records[n].image})"
                for n in pair
            )
            raise DataError(
                f"{source}: {len(apart)} lesion{'s have' if len(apart) > 1 else ' has'} two {kind}s, first {lesion!r}: "
                f"{shown}; {remedy}, or add --contradictions keep (contradictions='keep') if it is right"
            )


def _frequent_patient(records: Sequence[Record]) -> dict[str, Any]:
    """A patient with far more images than others, by one of them, as the description may be published."""
    counts = Counter(record.patient for record in records if record.patient)
    for patient, count in counts.most_common(1) if len(counts) > 1 else ():
        others = statistics.median(other for name, other in counts.items() if name != patient)
        if count >= FEW_IMAGES and 5 * count > len(records) and count >= RARER * others:
            image = next(record.image for record in records if record.patient == patient)
            return {"images": count, "first": image}
    return {}


def _named_alike(patients: Sequence[str], sites: Sequence[str]) -> int:
    """How many patients of folders have a name that one of another site has."""
    pairs = {(site, patient) for site, patient in zip(sites, patients, strict=False) if patient.startswith(f"{site}/")}
    sites_of = Counter(patient.removeprefix(f"{site}/") for site, patient in pairs)
    return sum(count > 1 for count in sites_of.values())


def _unknown_patients(records: Sequence[Record]) -> dict[str, Any]:
    without = [record.image for record in records if not record.patient and not record.lesion]
    if not without:
        return {}
    if len(without) == len(records):
        return {"patients": "unknown"}
    return {"without_patient": {"images": len(without), "first": without[:NAMED]}}
