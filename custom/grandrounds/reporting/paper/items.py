"""The items of two checklists, in short words, each with the subjects of the record that answer it.

CLAIM is that of Mongan, Moy and Kahn, "Checklist for Artificial Intelligence in Medical Imaging", Radiology: Artificial
Intelligence 2020; 2(2): e200029; its update of 2024 keeps the subjects. TRIPOD+AI is that of Collins et al., BMJ 2024; 385:
e078378. The published wording is what counts.
"""

from __future__ import annotations

from typing import NamedTuple


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
        ("1", "Title or abstract names the kind of artificial intelligence", ("kind",)),
        ("2", "Structured summary of design, methods, results and conclusions"),
    ),
    *_items(
        "Introduction",
        ("3", "Background, intended use and clinical role"),
        ("4", "Objectives and hypotheses"),
    ),
    *_items(
        "Methods: design",
        ("5", "Prospective or retrospective study"),
        ("6", "Goal of the study"),
    ),
    *_items(
        "Methods: data",
        ("7", "Sources of the data", ("sources", "sites")),
        ("8", "Eligibility criteria: how, where and when cases were found"),
        ("9", "Preparation of the data", ("imaging",)),
        ("10", "Selection of subsets of the data", ("division",)),
        ("11", "Definitions of data elements", ("task",)),
        ("12", "De-identification"),
        ("13", "How missing data were handled"),
    ),
    *_items(
        "Methods: ground truth",
        ("14", "Definition of the reference standard"),
        ("15", "Reason for this reference standard"),
        ("16", "Source of the annotations, qualification of the annotators"),
        ("17", "Tools for annotation"),
        ("18", "Variability within and between annotators"),
    ),
    *_items(
        "Methods: partitions",
        ("19", "Intended sample size and how it was found"),
        ("20", "How data were assigned to partitions, and their shares", ("division", "images")),
        ("21", "Level at which partitions are disjoint", ("level",)),
    ),
    *_items(
        "Methods: model",
        ("22", "Description of the model, inputs and outputs", ("network", "imaging", "task")),
        ("23", "Software, frameworks and packages", ("software",)),
        ("24", "Initial values of the parameters", ("start",)),
    ),
    *_items(
        "Methods: training",
        (
            "25",
            "Training, augmentation, hyper-parameters, number of models",
            ("training", "augmentation", "seeds"),
        ),
        ("26", "How the final model was selected", ("selection",)),
        ("27", "Ensembles"),
    ),
    *_items(
        "Methods: evaluation",
        ("28", "Measures of performance", ("scores",)),
        ("29", "Measures of significance and uncertainty", ("uncertainty",)),
        ("30", "Analysis of robustness or sensitivity", ("seeds", "by_site")),
        ("31", "Methods of explanation"),
        ("32", "Validation or test on external data"),
    ),
    *_items(
        "Results",
        ("33", "Flow of cases", ("images",)),
        ("34", "Demographic and clinical characteristics by partition"),
        ("35", "Performance of the best models on all partitions", ("results", "selection")),
        ("36", "Diagnostic accuracy and its precision", ("results", "by_class")),
        ("37", "Analysis of failures", ("failures",)),
    ),
    *_items(
        "Discussion",
        ("38", "Limitations, bias, uncertainty, generalisation"),
        ("39", "Consequences for practice"),
    ),
    *_items(
        "Other information",
        ("40", "Registration"),
        ("41", "Where the protocol is"),
        ("42", "Funding and role of funders"),
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
        ("7", "Preparation and quality checks of the data", ("imaging",)),
    ),
    *_items(
        "Methods: outcome and predictors",
        ("8a", "Outcome and how it was assessed", ("task",)),
        ("8b", "Qualification of who assessed a subjective outcome"),
        ("8c", "Blinding of the assessment"),
        ("9a", "Choice of the first predictors"),
        ("9b", "Definition of all predictors", ("imaging",)),
        ("9c", "Qualification of who assessed subjective predictors"),
        ("10", "Sample size"),
        ("11", "Missing data"),
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
        ("13", "Methods for imbalance of classes", ("imbalance",)),
        ("14", "Approaches to fairness"),
        ("15", "Output of the model and thresholds", ("task", "thresholds")),
        ("16", "Differences between data of development and evaluation"),
        ("17", "Ethical approval and consent"),
    ),
    *_items(
        "Open science",
        ("18a", "Funding"),
        ("18b", "Conflicts of interest"),
        ("18c", "Protocol"),
        ("18d", "Registration"),
        ("18e", "Availability of the data"),
        ("18f", "Availability of the code", ("software", "command")),
        ("19", "Involvement of patients and the public"),
    ),
    *_items(
        "Results",
        ("20a", "Flow of participants", ("images",)),
        ("20b", "Characteristics overall and by source"),
        ("20c", "Comparison of development and evaluation data"),
        ("21", "Numbers of participants and outcomes in each analysis", ("images",)),
        ("22", "Details of the full model, so that others can predict", ("network",)),
        ("23a", "Performance with intervals, also in subgroups", ("results", "by_class")),
        ("23b", "Heterogeneity of performance between clusters", ("by_site",)),
        ("24", "Results of updating"),
    ),
    *_items(
        "Discussion",
        ("25", "Interpretation, also of fairness"),
        ("26", "Limitations"),
        ("27a", "How input of poor quality is to be handled"),
        ("27b", "What users must do and know"),
        ("27c", "Next steps, generalisation"),
    ),
]
