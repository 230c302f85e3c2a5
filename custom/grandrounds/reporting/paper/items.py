"""The items of two checklists, in short words, each with the subjects of the record that answer it.

CLAIM is the update of 2024 by Tejani et al., "Checklist for Artificial Intelligence in Medical Imaging (CLAIM): 2024
Update", Radiology: Artificial Intelligence 2024; 6(4): e240300, with 44 items. TRIPOD+AI is that of Collins et al., BMJ
2024; 385: e078378, with 27 items. The published wording is what counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from grandrounds.reporting.format import plain_markdown


class ChecklistItem(NamedTuple):
    """An item: number, section, its words, and the subjects of :func:`~grandrounds.reporting.paper.facts.facts_of`."""

    number: str
    section: str
    words: str
    subjects: tuple[str, ...] = ()


def _items(section: str, *items: tuple[str, str] | tuple[str, str, tuple[str, ...]]) -> list[ChecklistItem]:
    return [ChecklistItem(item[0], section, *item[1:]) for item in items]


CLAIM = [
    *_items(
        "Title and abstract",
        ("1", "Title or abstract says that it is a study of artificial intelligence, and of which kind", ("kind",)),
        ("2", "Summary of design, methods, results and conclusions"),
    ),
    *_items(
        "Introduction",
        ("3", "Background, intended use and role of the model"),
        ("4", "Aims, objectives and hypotheses"),
    ),
    *_items(
        "Methods: study design",
        ("5", "Prospective or retrospective study"),
        ("6", "Goal of the study"),
    ),
    *_items(
        "Methods: data",
        ("7", "Sources of the data", ("sources", "sites")),
        ("8", "Inclusion and exclusion criteria"),
        ("9", "Preprocessing of the data", ("imaging",)),
        ("10", "Selection of subsets of the data", ("division",)),
        ("11", "Methods of de-identification"),
        ("12", "How missing data were handled"),
        ("13", "Image acquisition protocol"),
    ),
    *_items(
        "Methods: reference standard",
        ("14", "Methods by which the reference standard was obtained"),
        ("15", "Reason for this reference standard"),
        ("16", "Source of the annotations of the reference standard"),
        ("17", "Annotation of the test set"),
        ("18", "Variability within and between annotators"),
    ),
    *_items(
        "Methods: data partitions",
        ("19", "How data were assigned to partitions", ("division", "images")),
        ("20", "Level at which partitions are disjoint", ("level",)),
    ),
    *_items("Methods: test data", ("21", "Intended sample size")),
    *_items(
        "Methods: model",
        ("22", "Description of the model", ("network", "imaging", "task")),
        ("23", "Software libraries, frameworks and packages", ("software",)),
        ("24", "Initial values of the parameters", ("start",)),
    ),
    *_items(
        "Methods: training",
        ("25", "How the model was trained", ("training", "augmentation", "seeds")),
        ("26", "How the final model was selected", ("selection",)),
        ("27", "Ensembles"),
    ),
    *_items(
        "Methods: evaluation",
        ("28", "Measures of performance", ("scores",)),
        ("29", "Measures of significance and uncertainty", ("uncertainty",)),
        ("30", "Analysis of robustness or sensitivity", ("seeds", "by_site")),
        ("31", "Methods of explanation or interpretation"),
        ("32", "Evaluation on internal data", ("division", "by_site")),
        ("33", "Test on external data"),
        ("34", "Registration of a clinical trial"),
    ),
    *_items(
        "Results: data",
        ("35", "Numbers of patients or examinations included and excluded", ("images",)),
        ("36", "Demographic and clinical characteristics in each partition"),
    ),
    *_items(
        "Results: model performance",
        ("37", "Measures of performance and their uncertainty", ("results",)),
        ("38", "Estimates of diagnostic performance and their precision", ("by_class",)),
        ("39", "Analysis of wrong results", ("failures",)),
    ),
    *_items(
        "Discussion",
        ("40", "Limitations of the study"),
        ("41", "Consequences for practice, with intended use or clinical role"),
    ),
    *_items(
        "Other information",
        ("42", "Reference to the full protocol or to further technical details"),
        ("43", "Availability of software, trained model and data", ("software", "command")),
        ("44", "Funding and other support, and the role of the funders"),
    ),
]
TRIPOD_AI = [
    *_items(
        "Title and abstract",
        ("1", "Title says: development or evaluation of a model, target population, outcome"),
        ("2", "Abstract by TRIPOD+AI for abstracts"),
    ),
    *_items(
        "Introduction",
        ("3a", "Context, reason for the model, existing models"),
        ("3b", "Target population, purpose in the care pathway, users"),
        ("3c", "Known inequalities between groups"),
        ("4", "Objectives: development, validation or both"),
    ),
    *_items(
        "Methods: data and participants",
        ("5a", "Sources of the data for development and evaluation, and how representative they are", ("sources",)),
        ("5b", "Dates of the collected data"),
        ("6a", "Setting, number and place of centres", ("sites",)),
        ("6b", "Eligibility criteria"),
        ("6c", "Treatments"),
        ("7", "Preparation and quality checks of the data, and whether they were alike in all groups", ("imaging",)),
    ),
    *_items(
        "Methods: outcome and predictors",
        ("8a", "Outcome, its time horizon, how and when it was assessed", ("task",)),
        ("8b", "Qualification of who assessed a subjective outcome"),
        ("8c", "Blinding of the assessment"),
        ("9a", "Choice of the initial predictors, and any selection before the model was built"),
        ("9b", "Definition of all predictors", ("imaging",)),
        ("9c", "Qualification of who assessed subjective predictors"),
        ("10", "How the study size was arrived at, for development and evaluation"),
        ("11", "How missing data were handled"),
    ),
    *_items(
        "Methods: analysis",
        ("12a", "How data were used for development and evaluation", ("division", "images")),
        ("12b", "How predictors were handled", ("imaging", "augmentation")),
        (
            "12c",
            "Kind of model, building, hyper-parameters, internal validation",
            ("network", "start", "training", "selection"),
        ),
        ("12d", "Heterogeneity between clusters, such as hospitals", ("by_site",)),
        ("12e", "Measures and plots of performance", ("scores", "uncertainty", "calibration")),
        ("12f", "Updating of the model"),
        ("12g", "How predictions were calculated in the evaluation", ("selection", "thresholds")),
        ("13", "Methods for imbalance of classes, and recalibration after them", ("imbalance",)),
        ("14", "Approaches to fairness"),
        ("15", "Output of the model and thresholds", ("task", "thresholds")),
        ("16", "Differences between data of development and evaluation: setting, criteria, outcome, predictors"),
        ("17", "Ethical approval, and consent or its waiver"),
    ),
    *_items(
        "Open science",
        ("18a", "Funding"),
        ("18b", "Conflicts of interest"),
        ("18c", "Protocol"),
        ("18d", "Registration"),
        ("18e", "Availability of the data"),
        ("18f", "Availability of the code", ("software", "command")),
    ),
    *_items("Patient and public involvement", ("19", "Involvement of patients and the public, or that there was none")),
    *_items(
        "Results",
        ("20a", "Flow of participants", ("images",)),
        ("20b", "Characteristics overall and by source or setting"),
        ("20c", "In an evaluation, the distribution of predictors compared with that of the development data"),
        ("21", "Numbers of participants and outcomes in each analysis", ("images",)),
        ("22", "Details of the full model, so that others can predict", ("network",)),
        ("23a", "Performance with intervals, also in subgroups", ("results", "by_class")),
        ("23b", "Heterogeneity of performance between clusters", ("by_site",)),
        ("24", "Results of updating the model, if it was updated"),
    ),
    *_items(
        "Discussion",
        ("25", "Interpretation, also of fairness"),
        ("26", "Limitations and their effect on bias, uncertainty and generalisability"),
        ("27a", "How input that is missing or of poor quality is to be handled in use"),
        ("27b", "What users must do and know"),
        ("27c", "Next steps, applicability and generalisability"),
    ),
]


FOR_AUTHORS = "to be completed by the authors"
CHECKLIST_COLUMNS = ("item", "section", "what it asks for", "state", "from the record")
FILLED, PART, LACKING = "from the record", "in part from the record", "not recorded"


def checklist_rows(items: Sequence[ChecklistItem], facts: Mapping[str, str]) -> list[list[str]]:
    """A row for each item with its state; a subject that the record lacks says so."""
    rows = []
    for item in items:
        texts = list(dict.fromkeys(facts[name] for name in item.subjects))
        known = [text != LACKING for text in texts]
        state = (
            FOR_AUTHORS if not texts else FILLED if all(known) else PART if any(known) else f"{LACKING}, {FOR_AUTHORS}"
        )
        rows.append([item.number, item.section, item.words, state, f"{'. '.join(texts)}." if any(known) else ""])
    return rows


def checklist_markdown(title: str, rows: Sequence[Sequence[str]]) -> str:
    """A checklist as a table of Markdown."""
    lines = [
        f"# {title}",
        "",
        "Items in short words; the published checklist is what counts. What a run's record answers is filled in and must be "
        "read before it is sent; the record knows nothing of patients' recruitment, ethics or the clinic.",
        "",
        f"| {' | '.join(CHECKLIST_COLUMNS)} |",
        f"|{'---|' * len(CHECKLIST_COLUMNS)}",
        *(f"| {' | '.join(map(plain_markdown, row))} |" for row in rows),
    ]
    return "\n".join(lines) + "\n"
