"""Curves are those of the record's events, and a score belongs to the round that made its model."""

from grandrounds.evaluation.history import RunHistory, round_curve, sites_of, training_curves, validation_curves
from grandrounds.federation.server.record import RunRecord, read_events
from grandrounds.reporting.figures.runs import training_drawings


def answer(number, site, **metrics):
    return {"event": "answer", "round": number, "site": site, "task": "train", "metrics": metrics}


EVENTS = [
    {"event": "start", "sites": ["site-10", "site-2"]},
    answer(1, "site-2", loss=2.0),
    {"event": "dropped", "round": 1, "site": "site-3", "reason": "late"},
    {"event": "round_end", "round": 1, "soft_label_entropy": 1.5, "moved": {"down": 10, "up": 4}},
    answer(2, "site-2", loss=1.0, **{"validation.accuracy": 0.25}),
    answer(2, "site-4", loss=3.0),
    {"event": "round_end", "round": 2, "moved": {"down": 20, "up": 8}},
]
SITES = ["site-2", "site-3", "site-4", "site-10"]


def test_sites_are_those_at_the_start_and_all_that_were_heard_of_later():
    assert sites_of(EVENTS) == SITES


def test_a_score_is_that_of_the_round_before_the_task():
    assert validation_curves(EVENTS, SITES, "accuracy") == {"site-2": {1: 0.25}}
    assert validation_curves(EVENTS, SITES, "f1_macro") == {}


def test_a_training_metric_is_listed_under_its_own_round():
    assert training_curves(EVENTS, SITES, "loss") == {"site-2": {1: 2.0, 2: 1.0}, "site-4": {2: 3.0}}


def test_notes_of_rounds_are_found_inside_objects_too():
    assert round_curve(EVENTS, "soft_label_entropy") == {1: 1.5}
    assert round_curve(EVENTS, "moved", "up") == {1: 4.0, 2: 8.0}
    assert round_curve(EVENTS, "moved") == {}


def test_bytes_are_all_that_has_travelled_by_the_end_of_a_round(tmp_path):
    record = RunRecord(tmp_path, {})
    for number in (1, 2):
        record.count_bytes("site-1", "down", {"global": 100, "peer-1": 50})
        record.count_bytes("site-2", "up", {"update": 7})
        record.close_round({"round": number, "asked": [], "answered": [], "dropped": {}})
    events = read_events(tmp_path)
    assert round_curve(events, "moved", "down") == {1: 150, 2: 300}
    sites = ["site-1", "site-2"]
    (traffic,) = training_drawings(RunHistory(list(events), sites, {}, ()), None, sites)
    drawn = traffic.figure.axes[0].lines
    assert [line.get_ydata().tolist() for line in drawn] == [[0.00015, 0.0003], [7e-6, 14e-6]]
