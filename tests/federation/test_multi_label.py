"""Federations whose images have any number of findings."""

import csv

import pytest

from grandrounds.data.partition.phantom_site import FINDINGS_NAME, phantom_site
from grandrounds.deployment.jobs import check_job, job_names, load_job, with_options
from grandrounds.errors import ConfigurationError

FINDINGS = ("round", "ring", "clustered")
MULTI = [
    "problem.task=multi",
    f"problem.dataset={FINDINGS_NAME}",
    'problem.classes=["round","ring","clustered"]',
    "controller.selection_metric=auto",
]
MORE = {
    "fedperl": ["controller.warm_up=0", "controller.pa_min_peers=1", "controller.peers=1"],
}
SUPPORTED = ("local", "local_fixmatch", "fedavg", "ssfl", "fedperl")


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory):
    """Two hospitals, the second with few labels."""
    folder = tmp_path_factory.mktemp("findings")
    for number, labelled in ((1, 1.0), (2, 0.2)):
        phantom_site(f"site-{number}", folder, images=120, size=32, labelled=labelled, dataset=FINDINGS_NAME)
    return folder


@pytest.mark.parametrize("name", SUPPORTED)
def test_methods_train_score_and_write_findings(name, tiny, run, hospitals, tmp_path):
    job = tiny(name, *MULTI, "controller.rounds=2", *MORE.get(name, []))
    found = run(job, tmp_path, ["site-1", "site-2"], sites_dir=hospitals)
    assert found.summary["status"] == "finished"
    assert found.summary["selected"]["metric"] in ("auc_macro", "log_likelihood")
    model = "own" if name.startswith("local") else "common"
    for site in ("site-1", "site-2"):
        scores = found.summary["test"][site]
        assert 0 <= scores[f"{model}.auc_macro"] <= 1
        assert f"{model}.accuracy" not in scores, "argmax means nothing here"
        with (found.results / site / f"predictions_{model}.csv").open() as stream:
            rows = list(csv.DictReader(stream))
        assert list(rows[0]) == ["image", *(f"{kind}_{one}" for kind in ("label", "probability") for one in FINDINGS)]
        assert {row[f"label_{one}"] for row in rows for one in FINDINGS} == {"0", "1"}
        assert any(sum(float(row[f"probability_{one}"]) for one in FINDINGS) > 1.01 for row in rows) or name != "fedavg"
    counts = found.summary["counts"]["site-1"][model]["images"]
    assert [len(finding) for finding in counts] == [2, 2, 2], "absent and present"


@pytest.mark.parametrize("name", sorted(set(job_names()) - {*SUPPORTED, "fedirm"}))
def test_other_methods_refuse_findings_in_one_line(name):
    job = with_options(load_job(name), ["problem.task=multi", 'problem.classes=["a","b"]'])
    with pytest.raises(ConfigurationError, match=f"not supported by {name}; the jobs for it are local, "):
        check_job(job)
