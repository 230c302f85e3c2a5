import io

import numpy as np
from rich.console import Console
from rich.table import Table

from grandrounds.console.output import results, say
from grandrounds.console.scores import COLUMNS, facts, score_table
from grandrounds.evaluation.bootstrap import cases_from_confusion
from grandrounds.evaluation.record import EvalRecord
from grandrounds.evaluation.tables_of_cases import site_counts
from grandrounds.protocol.tasks import SINGLE
from grandrounds.reporting.run import Origin, ReadRun, RunLog, Tests


def run_of(records, model="common"):
    log = RunLog(
        "fedavg", "finished", "", {"problem": {"classes": ["a", "b"]}}, tuple(records), (), {}, {}, (), 2, 1.0, {}, {}
    )
    return ReadRun("x", ("a", "b"), log, Tests(model, records), Origin({"simulated": True}))


def reported(images, *scores):
    exact = dict(zip(("accuracy", "balanced_accuracy", "f1_weighted"), scores, strict=False))
    return EvalRecord(SINGLE, ("a", "b"), images, exact)


def counted(matrix, keeps_counts=False):
    matrix = np.array(matrix)
    counts = site_counts([cases_from_confusion(matrix)])
    accuracy = float(np.trace(matrix) / matrix.sum())
    return EvalRecord(SINGLE, ("a", "b"), int(matrix.sum()), {"accuracy": accuracy}, () if keeps_counts else (counts,))


def text(table, width=120):
    stream = io.StringIO()
    Console(file=stream, width=width).print(table)
    return stream.getvalue()


def rows(table):
    lines = [line for line in text(table).splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]


def test_what_others_have_named_neither_is_markup_nor_controls_a_terminal(monkeypatch):
    """A hospital's version, a server's reason or a foreign record: a closing bracket would end the command."""
    stream = io.StringIO()
    stream.isatty = lambda: True
    monkeypatch.setattr("sys.stdout", stream)
    monkeypatch.setenv("COLUMNS", "100")
    table = Table("site")
    table.add_row("[/] [link=http://x.example]y :ok:")
    table.add_row("c\x1b[2J\u202ed")
    results().print(table)
    say(results(), "a\x1b]0;title\x07 b\x9b2J\rc\td\ne")
    shown = stream.getvalue()
    assert "[/] [link=http://x.example]y :ok:" in shown
    assert r"c\x1b[2J\u202ed" in shown
    assert r"a\x1b]0;title\x07 b\x9b2J\rc" in shown


def test_without_counts_the_table_has_what_sites_report_and_the_pooled_accuracy():
    found = score_table(
        [run_of({"site-1": reported(3, 0.5, 0.25, 0.5), "site-2": reported(1, 1.0, 0.75, 1.0), "site-3": reported(0)})]
    )
    assert rows(found) == [
        ["site-1", "3", "", "0.500", "0.250", "0.500"],
        ["site-2", "1", "", "1.000", "0.750", "1.000"],
        ["site-3", "0", "", "-", "-", "-"],
        ["mean", "", "", "0.750", "0.500", "0.750"],
        ["pooled", "4", "", "0.625", "-", "-"],
    ]
    assert "- the site keeps its counts" in text(found)


def test_with_counts_every_class_counts_and_scores_of_few_cases_are_marked():
    found = score_table([run_of({"site-1": counted([[30, 10], [5, 15]]), "site-2": counted([[18, 0], [2, 0]])})])
    cells = rows(found)
    assert cells[0][:5] == ["site-1", "60", "0.667", "0.750", "0.750"]
    assert cells[1][:5] == ["site-2", "20", "0.900", "0.900", "0.500*"]  # two cases of class b, both missed
    assert cells[2][:5] == ["mean", "", "0.783", "0.825", "0.625*"]
    assert cells[3][:5] == ["pooled", "80", "0.725", "0.787", "0.755"]  # (48/58 + 15/22) / 2
    assert cells[4][:5] == ["always a", "", "", "0.725", "0.500"]
    assert cells[5][:5] == ["chance", "", "", "0.500", "0.500"]
    assert "* rests on fewer than 10 cases" in text(found)


def test_a_withheld_score_is_a_dash_with_its_reason():
    found = score_table(
        [run_of({"site-1": counted([[30, 10], [5, 15]], keeps_counts=True), "site-2": counted([[30, 10], [12, 15]])})]
    )
    assert [row[4] for row in rows(found)[:4]] == ["-", "0.653", "0.653 (1/2)", "-"]
    assert "- the site keeps its counts" in text(found)


def test_the_table_fits_into_100_columns():
    shown = {"common": 0.5, "own": 0.4}
    runs = [run_of({"site-10": reported(117, score, score, score)}, model) for model, score in shown.items()]
    assert "…" not in text(score_table(runs), 100)
    assert set(SINGLE.scores) <= set(COLUMNS)


def test_a_fallback_of_the_selection_is_named_with_its_reason(make_summary):
    selected = {"round": 1, "metric": "log_likelihood", "score": -1.5, "basis": "pooled", "note": "too few cases"}
    assert facts(make_summary(selected=selected))[:2] == [
        "selected: the model after round 1 of 2 (log_likelihood -1.500, validation images of all sites together)",
        "selection: too few cases",
    ]


def test_a_job_without_a_common_model_shows_the_sites_own_ones():
    found = score_table([run_of({"site-1": reported(4, 0.75, 0.5, 0.25)}, "own")])
    assert rows(found)[0] == ["site-1", "4", "", "0.750", "0.500", "0.250"]


def test_facts_are_selection_bytes_and_time(make_summary):
    assert facts(make_summary()) == [
        "selected: the model after round 1 of 2 (balanced_accuracy 0.500, mean over the sites' validation images)",
        "moved: 3.0 MB to the sites, 400.0 kB from them",
        "time: 1 min 15 s in 2 rounds",
    ]


def test_without_validation_the_selection_has_no_score(make_summary):
    selected = {"round": 2, "metric": None, "score": None}
    assert facts(make_summary(selected=selected))[0] == "selected: the model after round 2 of 2"
    assert facts({**make_summary(), "remarks": ["the training has diverged"]})[0] == "the training has diverged"


def test_own_choices_that_score_as_the_selected_model_have_no_columns_of_their_own():
    sites, other = {"site-1": counted([[30, 10], [5, 15]])}, {"site-1": counted([[29, 11], [5, 15]])}
    same = score_table([run_of(sites), run_of(sites, "own")])
    assert rows(same)[0] == rows(score_table([run_of(sites)]))[0]
    assert "cases are images; selected model; the sites' own choices score the same" in " ".join(text(same).split())
    different = score_table([run_of(sites), run_of(other, "own")])
    assert len(rows(different)[0]) == len(rows(same)[0]) + 3
    assert "selected model, each site's own choice" in " ".join(text(different).split())
