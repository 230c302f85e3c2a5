"""Averaging methods whose models the server cannot read."""

import pytest
import torch

from grandrounds.deployment.assignments import with_options
from grandrounds.deployment.jobs import load_job
from grandrounds.errors import ConfigurationError
from grandrounds.protocol.entries import floating_entries

tenseal = pytest.importorskip("tenseal")

from grandrounds.privacy.mechanisms.encrypted_sums import write_keys  # noqa: E402

SITES = ["site-1", "site-2", "site-3"]
ENCRYPTED = [
    "controller.aggregation=encrypted",
    "executor.encryption=required",
    "controller.norm_multiple=null",
    "controller.weight_multiple=null",
    "controller.min_sites=3",
]
SMALL = [
    "problem.backbone=small",
    "controller.rounds=1",
    "executor.steps=2",
    "executor.batch_size=8",
    "executor.device=cpu",
]


@pytest.fixture(scope="module")
def hospitals(phantom_hospitals):
    folder = phantom_hospitals(dict(zip(SITES, (48, 60, 96), strict=True)))
    write_keys(folder, SITES)
    return folder


def small(method, *options):
    return with_options(load_job(method), [*SMALL, *options])


def model_at(found, site):
    return torch.load(next(found.results.parent.glob(f"state/*/{site}/common.pt")), weights_only=True)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("fedavg", ["controller.weighting=samples"]),
        ("fedirm", []),
    ],
)
def test_sites_end_with_the_model_of_the_plain_mean(method, options, run, hospitals, tmp_path):
    plain = run(small(method, *options), tmp_path / "plain", SITES, sites_dir=hospitals)
    hidden = run(small(method, *options, *ENCRYPTED), tmp_path / "hidden", SITES, sites_dir=hospitals)
    for site in SITES:
        state = model_at(hidden, site)
        for name, value in floating_entries(plain.models["selected"]).items():
            # The plain mean is summed in single precision, from updates; the encrypted one in double, from models.
            torch.testing.assert_close(state[name], value, rtol=1e-6, atol=1e-7)
    for state in hidden.models.values():
        assert not floating_entries(state)
        assert state["ciphertexts"].dtype == torch.uint8


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("fedavg", ["controller.norm_multiple=10"], "cannot bound what it cannot read; set norm_multiple to null"),
        ("fedavg", ["controller.min_sites=1"], "of two, each site learns the other"),
        ("fedavg", ["controller.selection_images=server"], "hides models .* and selection_images=server scores models"),
        ("fedavg", ["controller.server_training={}"], "hides models .* and server_training trains the model"),
        ("fedavg", ["controller.update_precision=float16"], "update_precision must be float32"),
        ("fedperl", [], "hides models and single updates from the server, and peers are single sites' models"),
        ("rscfed", [], "aggregation must be mean"),
    ],
)
def test_what_needs_single_updates_or_the_model_is_refused(method, options, message, run, hospitals, tmp_path):
    with pytest.raises(ConfigurationError, match=message):
        run(small(method, *ENCRYPTED, *options), tmp_path, SITES, sites_dir=hospitals)
