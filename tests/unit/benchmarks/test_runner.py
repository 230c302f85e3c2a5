"""The runner says what it will run, keeps to a budget, and lets no row stand beside those of another origin unmarked."""

import json
import sys
from types import SimpleNamespace

import pytest

from benchmarks import processes
from benchmarks import run as runner
from benchmarks.experiment import Experiment, Row, Run, experiment_class
from benchmarks.origins import Origin, code, mixed, mixed_table, origin_of
from benchmarks.processes import machine
from benchmarks.report import experiment_parts
from benchmarks.results import Results
from grandrounds.data.images.cache import PREPROCESSING_VERSION
from grandrounds.errors import ConfigurationError
from grandrounds.federation.server.record import versions

SCORES = {"balanced_accuracy": 0.5, "auc_macro": 0.8, "f1_macro": 0.4, "accuracy": 0.6}


def result(method, package=None, processor=None, seed=4, score=0.5):
    """A result of the setting ``pbc_all``, by default of this process's package and processor."""
    own = {**versions(), **code()}
    return {
        **{"setting": "pbc_all", "method": method, "seed": seed, "cpu_seconds": 30.0},
        "scores": {**SCORES, "balanced_accuracy": score},
        "versions": own if package is None else {**own, "package": package},
        "machine": machine() if processor is None else {**machine(), "processor": processor},
    }


def written(folder, *results):
    folder.mkdir(parents=True, exist_ok=True)
    for content in results:
        (folder / "pbc_all_{method}_{seed}.json".format(**content)).write_text(json.dumps(content))


@pytest.fixture
def made(tmp_path):
    return Experiment("defaults", tmp_path, tmp_path / "work", tmp_path / "results")


def test_of_two_runners_one_runs_a_row(made, monkeypatch):
    asked = ["run.py", "defaults", "--here", "--only", "pbc_all_ridge", "--seed", "4"]
    monkeypatch.setattr(sys, "argv", [*asked, "--workspace", str(made.workspace), "--out", str(made.results)])
    started = []

    def run(self, row):
        started.append(row)
        with pytest.raises(SystemExit, match="pbc_all_ridge_4: another"):
            runner.main()
        written(made.results, result(row.method))

    monkeypatch.setattr(Experiment, "run", run)
    runner.main()
    runner.main()
    assert started == [Row("pbc_all", "ridge", 4)]


def test_a_missing_start_is_said_once_before_a_row_begins(tmp_path, monkeypatch):
    asked = ["fedirm_ham10000", "--only", "image_*", "--workspace", str(tmp_path), "--out", str(tmp_path / "results")]
    monkeypatch.setattr(sys, "argv", ["run.py", *asked])
    monkeypatch.setattr(runner, "run_all", lambda *_: pytest.fail("rows have begun"))
    with pytest.raises(SystemExit, match=r"start\.pt is missing; make it: python -m benchmarks\.pretrain --norm batch"):
        runner.main()


def test_the_plan_has_the_time_of_committed_rows_of_the_kind(made):
    rows = [Row("pbc_all", "ridge", 4), Row("pbc_all", "ridge", 5), Row("ham_noisy", "mdhfl", 4)]
    known = [json.loads(path.read_text()) for path in runner.BENCHMARKS.glob("defaults/results/pbc_all_ridge_?.json")]
    seconds = sorted(runner.seconds_of(content) for content in known)[len(known) // 2]
    assert runner.expected_seconds(made, rows[0]) == seconds
    _, line, last = runner.plan(made, rows, runner.argparse.Namespace(cpu_hours=0.5, minutes=float("inf")))
    assert line == f"  pbc_all_ridge, seeds 4, 5: {2 * seconds / 3600:.2f} CPU hours"
    assert last.startswith("rows: 3; expected: 0.")
    assert last.endswith("CPU hours, unknown: 0; budget: 0.5 CPU hours, any number of minutes")


def test_a_row_without_its_like_has_no_expected_time(made, monkeypatch):
    monkeypatch.setattr(runner, "seconds_of", lambda content: None)
    assert runner.expected_seconds(made, Row("pbc_all", "ridge", 4)) is None
    budget = runner.argparse.Namespace(cpu_hours=float("inf"), minutes=5.0)
    assert list(runner.plan(made, [Row("pbc_all", "ridge", 4)], budget)) == [
        "  pbc_all_ridge, seeds 4: time unknown",
        "rows: 1; expected: 0.00 CPU hours, unknown: 1; budget: any number of CPU hours, 5 minutes",
    ]


def test_no_row_starts_beyond_the_budget_and_those_left_are_named(tmp_path, monkeypatch, capsys):
    spent, started = iter([0.0, 0.0, 40.0]), []
    monkeypatch.setattr(runner, "cpu_seconds", lambda: next(spent))
    monkeypatch.setattr(processes, "subprocess", SimpleNamespace(call=started.append))
    asked = ["defaults", "--only", "pbc_all_ridge", "--seed", "4", "5", "--cpu-hours", "0.01"]
    monkeypatch.setattr(
        sys, "argv", ["run.py", *asked, "--workspace", str(tmp_path), "--out", str(tmp_path / "results")]
    )
    runner.main()
    assert capsys.readouterr().out.splitlines()[-1] == "rows left: pbc_all_ridge_4, pbc_all_ridge_5"
    assert len(started) == 1


def test_groups_of_another_origin_are_named_and_rows_of_the_others_run(made, monkeypatch, capsys):
    written(made.results, result("ridge", "0" * 64, seed=4))
    started = []
    monkeypatch.setattr(processes, "subprocess", SimpleNamespace(call=started.append))
    asked = ["run.py", "defaults", "--only", "pbc_all_fedavg", "--seed", "4", "5"]
    monkeypatch.setattr(sys, "argv", [*asked, "--workspace", str(made.workspace), "--out", str(made.results)])
    with pytest.raises(SystemExit, match=r"pbc_all.*seed 4"):
        runner.main()
    assert [command[-1] for command in started] == ["5"]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("pbc_all_fedavg_4 would stand beside pbc_all_ridge_4")
    assert lines[-1] == "rows left: pbc_all_fedavg_4, pbc_all_fedavg_5"


def test_a_row_records_what_computed_it(made):
    row = Row("pbc_all", "ridge", 4)
    summary = {"bytes": {}, "seconds": 1.0, "versions": {"torch": "2"}}
    found = made.circumstances(Run(row, made.job(row, {}), made.workspace, made.root, {}, [], summary))
    assert found["versions"] == {"torch": "2", **code()}
    assert (len(code()["package"]), code()["preprocessing"]) == (64, str(PREPROCESSING_VERSION))
    assert code()["commit"]
    assert found["machine"]["processor"]


@pytest.mark.parametrize("other", [{"package": "0" * 64}, {"processor": "another"}], ids=str)
def test_a_row_beside_those_of_another_origin_is_refused_or_marked(made, monkeypatch, other):
    row, spent = Row("pbc_all", "fedavg", 4), [1.0]
    monkeypatch.setattr("benchmarks.experiment.cpu_seconds", lambda: sum(spent))
    monkeypatch.setattr(made, "record", lambda row: spent.append(2.5) or result(row.method))
    written(made.results, result("refined", seed=5, **other))
    assert made.beside(row) == []  # of another seed
    written(made.results, result("ridge", **other))
    with pytest.raises(ConfigurationError, match=r"pbc_all_fedavg_4.*pbc_all_ridge_4"):
        made.run(row)
    made.mixed = True
    made.run(row)
    written_row = json.loads(made.result(row).read_text())
    assert written_row["mixed"] == ["pbc_all_ridge_4"]
    assert written_row["row_cpu_seconds"] == 2.5


@pytest.mark.parametrize(("kind", "known"), [(Experiment, False), (experiment_class("defaults"), True)], ids=str)
def test_a_resumed_row_has_no_cpu_time_but_one_that_begins_anew(made, monkeypatch, kind, known):
    row, experiment = Row("pbc_all", "ridge", 4), kind("defaults", made.root, made.workspace, made.results)
    monkeypatch.setattr(experiment, "record", lambda row: result(row.method))
    experiment.run_folder(row).mkdir(parents=True)
    experiment.run(row)
    assert (json.loads(made.result(row).read_text())["row_cpu_seconds"] is not None) == known


def test_a_row_that_was_run_again_and_agrees_vouches_for_the_others(made):
    made.configuration["again"] = {"score": "scores/balanced_accuracy", "deviation": 0.01}
    row = Row("pbc_all", "fedavg", 4)
    written(made.results, result("ridge", "0" * 64, score=0.5), result("refined", "0" * 64))
    written(made.results.with_name("again"), result("ridge", score=0.52))
    with pytest.raises(ConfigurationError, match="pbc_all_ridge_4"):
        made.beside(row)
    written(made.results.with_name("again"), result("ridge", score=0.505))
    assert made.beside(row) == []


def test_rows_of_a_trial_may_be_of_any_origin(made):
    written(made.results, result("ridge", "0" * 64))
    made.assignments = ["controller.rounds=1"]
    assert made.beside(Row("pbc_all", "fedavg", 4)) == []


def test_a_page_marks_rows_of_another_origin_and_says_which(tmp_path):
    first = [result(method, "a" * 64, "one") for method in ("ridge", "refined")]
    written(tmp_path, *first)
    assert not any("origin" in part for part in experiment_parts("defaults", tmp_path))
    written(tmp_path, result("fedavg", "b" * 64, "two"))
    *tables, explained, table = experiment_parts("defaults", tmp_path)
    title = experiment_class("defaults")("defaults").configuration["methods"]["fedavg"]["title"]
    assert f"| {title} ‡ | 4 |" in tables[-1]
    assert "| ridge, `--preset recommended --image-size 112` | 4 |" in tables[-1]
    assert "‡ in a table" in explained
    assert f"| pbc_all | 4 | package {'b' * 24}, torch {versions()['torch']}, two | {title} |" in table


def test_seeds_with_the_same_origins_share_a_row():
    contents = {
        "a": {1: result("a", "x", "p"), 2: result("a", "x", "p"), 3: result("a", "x", "p")},
        "b": {1: result("b", "y", "p"), 2: result("b", "y", "p"), 3: result("b", "x", "p")},
    }
    lines = mixed_table(mixed({"s": contents}), {"a": {"title": "A"}, "b": {"title": "B"}}).splitlines()[2:]
    assert [line.split(" | ")[:2] for line in lines] == [["| s", "1, 2"], ["| s", "1, 2"]]
    assert mixed({"s": {"a": contents["a"]}}) == {}


def test_a_row_without_a_digest_is_known_by_its_version():
    old = {"versions": {"grandrounds": "0.1.0", "torch": "2"}, "machine": {"processor": "p"}}
    assert origin_of(old) == Origin("0.1.0", "2", "p")


@pytest.mark.parametrize("name", ["ssl_pbc", "mdhfl_heads", "fedperl_ham10000"])
def test_committed_results_have_an_origin(name):
    contents = [
        run for methods in Results(name).settings.values() for runs in methods.values() for run in runs.values()
    ]
    assert contents
    assert all(all(origin_of(content)) for content in contents)
