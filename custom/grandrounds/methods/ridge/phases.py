"""The three phases of federated ridge regression, and the names of what travels in them."""

from __future__ import annotations

from grandrounds.protocol.names import VALIDATION_PREFIX

PHASE = "phase"
COUNT, SOLVE, LOGITS = PHASES = "count", "solve", "logits"
"""Counts of classes; sums at the weights that follow from these; losses of the head that follows from the sums."""
LABELS = "labels"
"""A fourth phase where images to label are chosen, by counts; what goes out is how many images of each class have labels."""
CLASS_COUNTS, SUMS = "class_counts", "sums"
"""Releases of the first two phases."""
CLASS_PATIENTS = "class_patients"
"""Behind the sums of each site, in the state of the controller."""
CLASS_WEIGHTS = "weights"
CENTRE, OFFSET = "centre", "offset"
CANDIDATES = "candidates"
"""Parts and entries of what a site is sent; candidates are heads, of which losses choose one."""
UNSEEN = "unseen"
"""Value of a task: that answers are added up unseen."""
LOSSES, ANSWERS = "losses", "answers"
"""Entries of the release of the last phase, if it is one: losses of all candidates, and how many answers they are of."""
LABEL_BUDGET = "label_budget"
"""Option of the controller and value of a task: how many images are to be labelled."""
LABEL_CUTS = "label_cuts"
"""Part of what a site is sent at the end: how far each class is to be labelled."""
LEAVING = "leaving"
"""One of the things that the record of a run of secure sums calls void."""
VALIDATION_IMAGES = f"{VALIDATION_PREFIX}n"


def temperature_metric(number: int) -> str:
    """The name of the loss at one of the temperatures; of several heads those of the first one come first.

    Example:
        >>> temperature_metric(3)
        'validation.log_loss.3'
    """
    return f"{VALIDATION_PREFIX}log_loss.{number}"
