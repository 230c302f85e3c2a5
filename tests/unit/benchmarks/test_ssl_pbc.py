"""The report of ssl_pbc: gates, the constant prediction, pseudo-labels by class."""

import json

from benchmarks.report import experiment_parts
from benchmarks.ssl_pbc.experiment import SCORED


def result(score, labels=None):
    """A run of two scored rounds around a score, on six test images of the first class and two of the second."""
    rounds = {
        number: {**dict.fromkeys(SCORED, score + change), "confusion": [[6, 0], [1, 1]]}
        for number, change in (("28", -0.01), ("30", 0.01))
    }
    known = {"round": [], "accepted": [], "pseudo_label_accuracy": [], "by_class": {}}
    origin = {"versions": {"grandrounds": "0", "torch": "2"}, "machine": {"processor": "one"}}
    return {"classes": ["a", "b"], "scores": rounds, "pseudo_labels": labels or known, **origin}


def test_the_page_has_gates_the_constant_prediction_and_labels_by_class(tmp_path):
    labels = {
        "round": [6, 7],
        "accepted": [0.5, 0.7],
        "pseudo_label_accuracy": [None, 0.9],
        "by_class": {"unlabelled": [10, 10], "accepted": [8, 0], "right": [6, 0]},
    }
    for name, content in (
        ("local_lower", result(0.4)),
        ("fedavg_lower", result(0.5)),
        ("fedavg_upper", result(0.54)),
        ("ssfl_average", result(0.53, labels)),
    ):
        path = tmp_path / "development" / f"{name}_101.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content))
    rows = [
        line.strip("| ").split(" | ") for part in experiment_parts("ssl_pbc", tmp_path) for line in part.splitlines()
    ]
    by_name = {row[0]: row[1:] for row in rows}
    assert by_name["federation helps"] == ["above 0", "0.100", "passed"]
    assert by_name["labels help"] == ["above 0.05", "0.040", "failed"]
    # Always a: recall 1 and 0, F1 of a is 12 / 14, of b 0.
    assert by_name["always the most frequent class"][1:5] == ["0.429", "—", "0.500", "0.750"]
    shown = [row for row in rows if row[0] == "SSFL, labels of the average received model, threshold 0.8"]
    assert shown[0][2:] == [*["0.530"] * 4, "0.600", "0.900", "—"]
    assert shown[1][1:] == ["0.75 of 8", "none"]


def test_each_pair_of_methods_is_compared_once(tmp_path):
    methods = ("fedavg_lower", "ssfl", "t2_pa", "local_lower")
    for number, name in enumerate(methods):
        for seed in (1, 2):
            path = tmp_path / "equal" / f"{name}_{seed}.json"
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(result(0.4 + 0.1 * number + 0.01 * seed)))
    titles = [
        line.split(" | ")[0].strip("| ")
        for part in experiment_parts("ssl_pbc", tmp_path)
        for line in part.splitlines()
        if " - " in line.split(" | ")[0]
    ]
    pairs = [frozenset(title.split(" - ")) for title in titles]
    assert len(pairs) == len(set(pairs)) == 6


def test_a_setting_with_unseen_sites_says_whose_images_were_scored(tmp_path):
    path = tmp_path / "unseen" / "fedavg_lower_1.json"
    path.parent.mkdir()
    path.write_text(json.dumps(result(0.4)))
    assert "Test images of site-4 and site-8 together" in next(iter(experiment_parts("ssl_pbc", tmp_path)))


def test_rows_that_were_run_again_are_compared_with_their_first_run(tmp_path):
    for folder, scores in (("first_run", (0.5, 0.6)), ("results", (0.52, 0.57))):
        for seed, score in enumerate(scores, start=1):
            path = tmp_path / "ssl_pbc" / folder / "equal" / f"ssfl_{seed}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(result(score)))
    *_, title, rows = experiment_parts("ssl_pbc", tmp_path / "ssl_pbc" / "results")
    assert "rows that were run again" in title
    assert rows.splitlines()[-1].split(" | ")[1:] == ["2", "0.550", "0.545", "0.025", "0.030 |"]
