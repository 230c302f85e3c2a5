"""Names of metrics and of predictions that sites, server and reports share."""

from typing import Literal

SERVER = "server"
"""The server among the parties, where sites have their names; also in a partition."""
EXECUTOR = "executor"
"""In a run's configuration: what the job states of its sites, by option."""
PACE_ROUNDS = 5
"""Last rounds whose median is the time of a round."""
ELSEWHERE = "elsewhere"
"""The model that owes nothing to a site's own images and is tested there: what a hypothetical next hospital may expect."""
OTHER_SOURCES = "other_sources"
"""The same for a next source (device or hospital of images): the model owes nothing to sites of this site's source."""
VALIDATION = "validation"
"""Of the common model's predictions for validation images."""
VALIDATION_PREFIX = f"{VALIDATION}."
"""Of a metric that is of validation images."""
CASE = "case"
"""The last column of a site's predictions: the number of the patient, else of the lesion, else of the image."""
LABEL_NEXT = "label_next"
"""Name of a site's list of images to label, beside its predictions, and of the page to label them in."""
OWN_ROUND = "own.round"
"""Metric of a test: the round whose model the site has chosen for itself."""
SPENT = "privacy.epsilon"
"""Metric that a gate adds where its policy allows it: the epsilon that the data set has spent, the answer included."""
STORED_BYTES, STORED_PIXELS = "bytes", "pixels-1"
"""Schemes of digests by which an image is known: of its file as it is stored, and of its pixels by the first decoding."""
Engine = Literal["in-process", "flare"]
"""What simulates: one process, or FLARE's simulator; named here, so that the command line need not import torch."""
SyntheticDevice = Literal["device-1", "device-2", "device-3", "device-4"]
Preprocess = Literal["none", "mammogram", SyntheticDevice]
"""Mammograms are cropped, turned and padded; a synthetic device retakes an image after resizing."""
