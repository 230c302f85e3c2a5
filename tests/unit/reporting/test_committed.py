"""A committed result is a run of counts; what is none is refused."""

import json

import pytest

from grandrounds.errors import ConfigurationError, DataError
from grandrounds.reporting.record import read_run

RESULT = {
    "method": "fedperl",
    "seed": 3,
    "classes": ["a", "b"],
    "test": {"site-2": {"common.n": 10}, "site-1": {"common.n": 10}},
    "predictions": {"common": {"site-1": {"ece": 0.1, "confusion": [[4, 1], [2, 3]]}}},
    "bytes": {"site-1": {"down.global": 10, "up.update": 5}},
    "selected": {"round": 1, "metric": "accuracy", "score": 0.5},
    "devices": {"site-1": "camera", "site-2": "scanner"},
    "peers": {"2": {"site-1": ["site-2"]}},
    "similarity": {"1": {"sites": ["site-1", "site-2"], "matrix": [[1, 0.5], [0.5, 1]]}},
    "options": {"controller": {"rounds": 4, "problem": {"dataset": "skin", "classes": ["a", "b"]}}},
}


@pytest.fixture
def file(tmp_path):
    def write(content):
        path = tmp_path / "fedperl_3.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write


def test_counts_communities_and_what_happened(file):
    run = read_run(file(RESULT), "x")
    assert run.places["site-1"].confusion().tolist() == [[4, 1], [2, 3]]
    assert run.places["site-1"].probabilities is None
    assert (run.seed, run.rounds, run.sites) == (3, 4, ("site-1", "site-2"))
    assert run.untested == ("site-2",)
    assert run.communities == {"site-1": "camera", "site-2": "scanner"}
    assert [event["event"] for event in run.events] == ["start", "similarity", "round_end"]
    assert run.events[2]["peers"] == {"site-1": ["site-2"]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (json.dumps(RESULT)[:-30], "is not valid JSON .*it was cut or altered"),
        ({**RESULT, "predictions": {}}, "is damaged or of another format"),
        ({**RESULT, "predictions": {"common": {"site-1": {"confusion": [[1, 2, 3]]}}}}, "damaged or of another format"),
        ({"accuracy": 0.5}, "is no result with predictions by site: method is missing"),
        ([1], "is no result with predictions by site"),
    ],
)
def test_what_is_no_result_is_refused(file, content, message):
    with pytest.raises(DataError, match=message):
        read_run(file(content), "x")


def test_a_folder_whose_summary_is_a_committed_result_is_no_run(tmp_path):
    (tmp_path / "summary.json").write_text(json.dumps(RESULT))
    with pytest.raises(ConfigurationError, match="is a committed result; name the file itself"):
        read_run(tmp_path, "x")
