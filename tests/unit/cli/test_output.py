import io

from rich.console import Console

from grandrounds.commands.output import facts, score_table


def rows(table):
    stream = io.StringIO()
    Console(file=stream, width=120).print(table)
    lines = [line for line in stream.getvalue().splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]


def test_the_table_has_a_row_per_site_and_the_mean_over_sites_with_test_images(make_summary):
    assert rows(score_table(make_summary())) == [
        ["site-1", "3", "0.250", "0.500"],
        ["site-2", "1", "0.750", "1.000"],
        ["site-3", "0", "-", "-"],
        ["mean", "", "0.500", "0.750"],
    ]


def test_a_job_without_a_common_model_shows_the_sites_own_ones(make_summary):
    own = {"site-1": {"own.round": 2.0, "own.n": 4, "own.balanced_accuracy": 0.5, "own.f1_weighted": 0.25}}
    assert rows(score_table(make_summary(test=own)))[0] == ["site-1", "4", "0.500", "0.250"]


def test_facts_are_selection_bytes_and_time(make_summary):
    assert facts(make_summary()) == [
        "selected: the model after round 1 of 2 (balanced_accuracy 0.500, mean over the sites' validation images)",
        "moved: 3.0 MB to the sites, 0.4 MB from them",
        "time: 1 min 15 s in 2 rounds",
    ]


def test_without_validation_the_selection_has_no_score(make_summary):
    selected = {"round": 2, "metric": None, "score": None}
    assert facts(make_summary(selected=selected))[0] == "selected: the model after round 2 of 2"
