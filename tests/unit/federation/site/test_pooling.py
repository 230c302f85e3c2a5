"""What leaves of a test beside counts in an encrypted sum."""

import numpy as np
import pytest
import torch

from grandrounds.evaluation.counts import SiteCounts
from grandrounds.evaluation.record import EvalRecord
from grandrounds.federation.site.pooling import CountPool
from grandrounds.privacy.mechanisms.ciphertexts import make_keys
from grandrounds.protocol.messages import Release, ReleaseKind, Result
from grandrounds.protocol.tasks import SINGLE

pytest.importorskip("tenseal")

TABLE = np.array([[[15, 5, 5], [30, 5, 5]]])
EXACT = {"accuracy": 45 / 55, "balanced_accuracy": (15 / 20 + 30 / 35) / 2}
BESIDE = Result(
    {
        "curves_common": Release(ReleaseKind.CURVES, {"counts": torch.zeros(1)}),
        "curves_validation": Release(ReleaseKind.CURVES, {"counts": torch.zeros(1)}),
    },
    {"own_last.balanced_accuracy": 0.75, "own_last.accuracy": 0.8},
)


@pytest.mark.parametrize(
    ("minimum", "releases", "scores"),
    [
        (5, {"pooled_common", "curves_validation"}, {"common.accuracy", "own_last.accuracy"}),
        (
            1,
            {"pooled_common", "counts_common", "curves_common", "curves_validation"},
            {"common.accuracy", "common.balanced_accuracy", "own_last.accuracy", "own_last.balanced_accuracy"},
        ),
    ],
)
def test_what_has_the_sizes_of_classes_leaves_only_where_no_site_hides_any(minimum, releases, scores):
    pool = CountPool("site-1", make_keys().secret, minimum, {"common": minimum})
    alone = pool.released("common", EvalRecord(SINGLE, ("a", "b"), 55, EXACT, (SiteCounts(TABLE, TABLE),)))
    whole = Result({**alone.releases, **BESIDE.releases}, {**alone.metrics, **BESIDE.metrics})
    leaving = pool.beside_sums(whole)
    assert leaving.releases.keys() == releases
    assert leaving.metrics.keys() - {"common.unit"} == scores
