import io

import numpy as np
from rich.console import Console

from grandrounds.console.output import COLUMNS, facts, score_table
from grandrounds.evaluation.bootstrap import cases_from_confusion
from grandrounds.evaluation.counts import counts_to_json, site_counts


def rows(table):
    stream = io.StringIO()
    Console(file=stream, width=120).print(table)
    lines = [line for line in stream.getvalue().splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]


def test_without_counts_the_table_has_what_sites_report_and_the_pooled_accuracy(make_summary):
    scores = {"common.n": 3, "common.accuracy": 0.5, "common.balanced_accuracy": 0.25, "common.f1_weighted": 0.5}
    other = {"common.n": 1, "common.accuracy": 1.0, "common.balanced_accuracy": 0.75, "common.f1_weighted": 1.0}
    assert rows(score_table(make_summary(test={"site-1": scores, "site-2": other, "site-3": {"common.n": 0}}))) == [
        ["site-1", "3", "-", "0.500", "0.250", "0.500"],
        ["site-2", "1", "-", "1.000", "0.750", "1.000"],
        ["site-3", "0", "-", "-", "-", "-"],
        ["mean", "", "", "0.750", "0.500", "0.750"],
        ["pooled", "4", "", "0.625", "-", "-"],
    ]


def test_with_counts_the_table_has_pooled_scores_and_references_and_leaves_out_rare_classes(make_summary):
    # Class b has two cases at the second site, so that site has no balanced accuracy.
    matrices = {"site-1": np.array([[30, 10], [5, 15]]), "site-2": np.array([[18, 0], [2, 0]])}
    counts, test = {}, {}
    for site, matrix in matrices.items():
        counts[site] = {"common": counts_to_json(site_counts(cases_from_confusion(matrix)))}
        test[site] = {"common.n": int(matrix.sum()), "common.accuracy": float(np.trace(matrix) / matrix.sum())}
    configuration = {"problem": {"classes": ["a", "b"]}}
    found = rows(score_table(make_summary(test=test, counts=counts, configuration=configuration)))
    assert found[0][:5] == ["site-1", "60", "0.667", "0.750", "0.750"]
    assert found[1][:5] == ["site-2", "20", "0.900", "0.900", "-"]
    assert found[2][:4] == ["mean", "", "0.783", "0.825"]
    assert found[3][:5] == ["pooled", "80", "0.725", "0.787", "0.755"]  # (48/58 + 15/22) / 2
    assert found[4][:5] == ["always a", "", "", "0.725", "0.500"]
    assert found[5][:5] == ["chance", "", "", "0.500", "0.500"]


def test_the_table_fits_into_100_columns(make_summary):
    scores = dict.fromkeys((f"{m}.{k}" for m in ("common", "own") for k in COLUMNS), 0.5)
    test = {"site-10": {**scores, "common.n": 117, "own.n": 117}}
    stream = io.StringIO()
    Console(file=stream, width=100).print(score_table(make_summary(test=test)))
    assert "…" not in stream.getvalue()


def test_a_fallback_of_the_selection_is_named_with_its_reason(make_summary):
    selected = {"round": 1, "metric": "log_likelihood", "score": -1.5, "basis": "pooled", "note": "too few cases"}
    assert facts(make_summary(selected=selected))[:2] == [
        "selected: the model after round 1 of 2 (log_likelihood -1.500, validation images of all sites together)",
        "selection: too few cases",
    ]


def test_a_job_without_a_common_model_shows_the_sites_own_ones(make_summary):
    own = {"own.round": 2.0, "own.n": 4, "own.accuracy": 0.75, "own.balanced_accuracy": 0.5, "own.f1_weighted": 0.25}
    assert rows(score_table(make_summary(test={"site-1": own})))[0] == ["site-1", "4", "-", "0.750", "0.500", "0.250"]


def test_facts_are_selection_bytes_and_time(make_summary):
    assert facts(make_summary()) == [
        "selected: the model after round 1 of 2 (balanced_accuracy 0.500, mean over the sites' validation images)",
        "moved: 3.0 MB to the sites, 0.4 MB from them",
        "time: 1 min 15 s in 2 rounds",
    ]


def test_without_validation_the_selection_has_no_score(make_summary):
    selected = {"round": 2, "metric": None, "score": None}
    assert facts(make_summary(selected=selected))[0] == "selected: the model after round 2 of 2"
