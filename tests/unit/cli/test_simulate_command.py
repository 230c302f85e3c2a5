import json
import re

import pytest

import grandrounds as gr
from grandrounds.api import running
from grandrounds.data.manifest import Record
from grandrounds.deployment import simulate as simulation
from grandrounds.deployment.disclosure import nothing_to_do
from grandrounds.deployment.jobs import load_job
from grandrounds.errors import UsageError
from grandrounds.files import write_json
from tests.federations import write_pictures


@pytest.fixture
def command(tmp_path, tiny):
    return ["simulate", "fedavg", *tiny, "--workspace", tmp_path / "run"]


def one_line(result, pattern):
    """The last line of the standard error is the reason; the lines before it are the run's progress."""
    assert result.exit_code == 1, result.output
    *before, last = result.stderr.splitlines()
    assert re.match(f"error: .*{pattern}", last), result.stderr
    assert not any("Traceback" in line for line in before)


def test_a_run_shows_its_rounds_and_scores_and_the_folder_of_the_results(run, command, sites_dir, tmp_path):
    result = run(*command, "--sites-dir", sites_dir(2))
    assert result.exit_code == 0, result.output
    assert re.search(r"^round 1/1: 2 of 2 sites, loss \d", result.stderr, re.MULTILINE)
    assert re.search(r"│ site-2 +│ +2│", result.stdout)
    assert str(tmp_path / "run" / "results") in result.stdout
    assert (tmp_path / "run" / "results" / "summary.json").is_file()
    assert not list((tmp_path / "run" / "results").glob("round_*"))
    others = [path for path in (tmp_path / "run").rglob("last.pt") if path.parent != tmp_path / "run" / "results"]
    assert len(others) == 2
    assert not any(path.samefile(tmp_path / "run" / "results" / "last.pt") for path in others)
    again = "--set controller.rounds=1 --set problem.image_size=32"
    assert result.exit_code == 0, (result.output, result.stderr, result.exception)
    assert f"simulate local --sites-dir {tmp_path / 'sites'} {again}   #" in result.stdout
    assert f"{again} --set executor.steps=1 --set executor.batch_size=2   #" in result.stdout
    assert "WARNING" in (tmp_path / "run" / "run.log").read_text()
    assert "WARNING" not in result.output


def test_the_job_that_counts_prints_its_counts_and_no_model(run, sites_dir, tmp_path):
    found = run(
        "simulate", "statistics", "--sites-dir", sites_dir(2), "--image-size", 32, "--workspace", tmp_path / "run"
    )
    assert found.exit_code == 0, found.output
    assert "images by class and size" in found.stdout
    assert "selected" not in found.output
    assert "ridge" not in found.output


@pytest.mark.parametrize("json_too", [[], ["--json"]], ids=["table", "json"])
def test_a_run_that_diverged_says_so_first_and_ends_with_1(run, command, sites_dir, json_too, monkeypatch):
    monkeypatch.setattr("grandrounds.federation.server.record.EXPLODED", 0.0)
    result = run(*command, "--sites-dir", sites_dir(2), *json_too)
    assert result.exit_code == 1, result.output
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert [line for line in errors if "diverged" in line] == errors[:1]
    assert "diverged" in result.stdout


def test_a_held_out_site_is_scored_after_the_training(run, command, sites_dir):
    result = run(*command, "--sites-dir", sites_dir(3), "--hold-out", "site-2", "--json")
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)
    assert (list(summary["records"]), list(summary["held_out"])) == (["site-1", "site-3"], ["site-2"])


def test_json_is_the_summary_and_a_second_run_is_complete_at_once(run, command, sites_dir, tmp_path):
    command += ["--sites-dir", sites_dir(2), "--json"]
    first, second = run(*command), run(*command)
    summary = json.loads(first.stdout)
    problem = summary["configuration"]["problem"]
    assert summary["status"] == "finished"
    # Data set and classes are those of the partition.
    assert (problem["dataset"], problem["classes"], problem["image_size"]) == ("skin", ["nevus", "melanoma"], 32)
    assert json.loads(second.stdout)["rounds_done"] == 1
    assert "round 1/1" not in second.stderr
    assert "all 1 rounds were complete before" in second.stderr
    longer = run(*command, "--set", "controller.rounds=2")
    assert "resumed from the checkpoint after round 1" in longer.stderr
    assert "round 2/2" in longer.stderr
    assert "round 1/2" not in longer.stderr


def test_a_site_that_fails_is_dropped_with_its_reason_and_the_others_go_on(run, command, sites_dir, images):
    lonely = [Record(images("site-3", 1)[0], "nevus", patient="p")]
    result = run(*command, "--sites-dir", sites_dir(2, site_3=lonely))
    assert result.exit_code == 0, result.output
    assert "round 1: site-3 is dropped: site-3: 1 training images, expected at least 2" in result.stderr


def test_a_site_with_one_image_ends_a_run_that_needs_it(run, command, sites_dir, images):
    lonely = [Record(images("site-2", 1)[0], "nevus", patient="p")]
    result = run(*command, "--sites-dir", sites_dir(1, site_2=lonely))
    one_line(
        result, "1 of 2 sites gave a valid result, min_sites is 2 .*site-2: 1 training images, expected at least 2"
    )


def test_an_empty_labelled_set_ends_a_run_that_needs_it(run, command, sites_dir, images):
    records = [
        Record(name, "nevus", split, patient=name, labelled=split != "train")
        for name, split in zip(images("site-2", 4), ("train", "train", "val", "test"), strict=True)
    ]
    result = run(*command, "--sites-dir", sites_dir(1, site_2=records))
    one_line(result, "site-2: empty labelled set")


def test_unreadable_images_above_the_limit_end_a_run_that_needs_the_site(run, command, sites_dir, tmp_path):
    folder = sites_dir(2)
    (tmp_path / "images" / "site-2" / "3.png").write_bytes(b"no picture")
    one_line(run(*command, "--sites-dir", folder), "site-2: .*1 of 8 .*3.png")


def test_a_manifest_that_was_changed_is_refused(run, command, sites_dir):
    folder = sites_dir(2)
    manifest = folder / "site-2" / "manifest.csv"
    manifest.write_text(manifest.read_text().replace("melanoma", "nevus"))
    one_line(run(*command, "--sites-dir", folder), f"{manifest} differs from the partition")


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        (["fedprl"], "fedprl"),
        (["fedperl", "--backbone", "densenet"], "densenet"),
        (["fedperl", "--sites", "1"], "min_sites is 2"),
        (["fedperl", "--sites-dir", "nowhere"], "nowhere .*partition.json"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_is_written(run, tmp_path, arguments, pattern):
    result = run("simulate", *arguments, "--workspace", tmp_path / "run")
    one_line(result, pattern)
    assert [line for line in result.stderr.splitlines() if " at 1 site; " not in line] == [
        result.stderr.splitlines()[-1]
    ]
    assert not (tmp_path / "run").exists()


def test_more_sites_than_the_partition_has_are_refused(run, command, sites_dir):
    one_line(run(*command, "--sites-dir", sites_dir(2), "--sites", 3), "--sites is 3, but .* has 2")


def test_another_run_in_the_same_folder_is_refused_with_both_values(run, command, sites_dir):
    command += ["--sites-dir", sites_dir(2)]
    assert run(*command).exit_code == 0
    one_line(run(*command, "--seed", 9), ".*has another run, which stays as it is: controller.seed=1 there, 9 here")


def test_a_refused_run_leaves_the_finished_one_as_it_was(run, command, sites_dir, tmp_path):
    command += ["--sites-dir", sites_dir(2)]
    assert run(*command).exit_code == 0
    summaries = [tmp_path / "run" / part / "summary.json" for part in ("state/fedavg/server", "results")]
    before = [path.read_bytes() for path in summaries]
    one_line(run(*command, "--seed", 9), ".*controller.seed=1 there, 9 here")
    assert json.loads(before[0])["status"] == "finished"
    assert [path.read_bytes() for path in summaries] == before


def test_a_failed_run_has_its_summary_and_events_among_the_results(run, command, sites_dir, images, tmp_path):
    lonely = [Record(images("site-2", 1)[0], "nevus", patient="p")]
    assert run(*command, "--sites-dir", sites_dir(1, site_2=lonely)).exit_code == 1
    results = tmp_path / "run" / "results"
    summary = json.loads((results / "summary.json").read_text())
    assert summary["status"] == "failed"
    assert "site-2: 1 training images" in summary["reason"]
    assert '"event": "failed"' in (results / "events.jsonl").read_text()


@pytest.fixture
def flare(run, command, sites_dir, tmp_path, monkeypatch):
    """Run in FLARE's simulator, of which only what it leaves in the record and its exit status are real."""
    record = tmp_path / "run" / "state" / "fedavg" / "server"

    def start(code, events=(), **summary):
        def ended(*_):
            record.mkdir(parents=True, exist_ok=True)
            if summary:
                (record / "summary.json").write_text(json.dumps(summary))
            with (record / "events.jsonl").open("a") as stream:
                stream.writelines(json.dumps(event) + "\n" for event in events)
            return code

        monkeypatch.setattr(simulation, "run_logged", ended)
        return run(*command, "--sites-dir", tmp_path / "sites", "--engine", "flare", "--json")

    sites_dir(2)
    return start


def test_a_summary_that_flare_did_not_renew_is_not_the_runs(flare):
    assert json.loads(flare(0, status="finished").stdout) == {"status": "finished"}
    one_line(flare(0), "nvflare simulator ended with status 0")
    failures = [{"event": "failed", "reason": reason} for reason in ("first", "controller.seed=1 there, 9 here")]
    one_line(flare(0, failures), "controller.seed=1 there, 9 here; the log is")
    one_line(flare(3), "nvflare simulator ended with status 3")
    one_line(flare(0, status="failed", reason="too few sites"), "too few sites")


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        (["--threads", 2], "threads is for the engine flare"),
        (["--wire", "--engine", "flare"], "wire is for"),
        (["--workers", 2, "--engine", "flare"], "workers is for the engine in-process"),
    ],
)
def test_an_option_of_the_other_engine_is_wrong_use(run, command, tmp_path, arguments, pattern):
    result = run(*command, *arguments)
    assert result.exit_code == 2
    assert pattern in result.stderr
    assert not (tmp_path / "run").exists()


def test_what_to_do_next_keeps_the_number_of_sites(run, command, sites_dir, tmp_path, monkeypatch, make_summary):
    def finished(job, workspace, *_):
        write_json(workspace / "results" / "summary.json", make_summary())

    monkeypatch.setattr(running, "simulate", finished)
    folder = sites_dir(3)
    result = run(*command, "--sites-dir", folder, "--sites", 2)
    assert result.exit_code == 0, (result.output, result.stderr, result.exception)
    assert f"simulate local --sites-dir {folder} --sites 2 " in result.stdout
    assert f"build fedavg --sites-dir {folder} --sites 2 " in result.stdout
    assert "--sites " not in run(*command, "--sites-dir", folder).stdout


def test_a_job_that_build_would_overwrite_is_not_built_next(run, sites_dir, tmp_path, monkeypatch, make_summary):
    def finished(job, workspace, *_):
        write_json(workspace / "results" / "summary.json", make_summary())

    monkeypatch.setattr(running, "simulate", finished)
    monkeypatch.chdir(tmp_path)
    folder = sites_dir(2)
    assert run("build", "fedavg").exit_code == 0
    for job, proposed in (("fedavg", True), ("build/jobs/fedavg", False)):
        shown = run("simulate", job, "--sites-dir", folder, "--workspace", tmp_path / str(proposed))
        assert shown.exit_code == 0, shown.output
        assert ("grandrounds build" in shown.stdout) == proposed


@pytest.mark.parametrize(
    "assignment", ["learning_rate=1", "executr.learning_rate=1", "executor.learnin_rate=1", "executor.learning_rate=x"]
)
def test_a_wrong_option_is_wrong_use_and_the_right_one_is_named(run, tmp_path, assignment):
    refused = run("simulate", "fedavg", "--workspace", tmp_path / "run", "--set", assignment)
    assert refused.exit_code == 2
    assert "executor.learning_rate" in refused.stderr.replace(assignment, "")


def test_a_workspace_or_a_place_for_jobs_that_cannot_be_written_is_one_line(run, command, tmp_path):
    (tmp_path / "run").write_text("a file")
    one_line(run(*command), f"{tmp_path / 'run'} is not a folder; choose another workspace")
    one_line(run("build", "fedavg", "--out", tmp_path / "run" / "jobs"), f"{tmp_path / 'run'}.*Not a directory")
    assert (tmp_path / "run").read_text() == "a file"


def test_presets_of_one_job_are_built_beside_each_other(run, tmp_path):
    for preset in ("rhfl", "fedmd"):
        assert run("build", "mdhfl", "--preset", preset, "--out", tmp_path).exit_code == 0
    assert {folder.name for folder in tmp_path.iterdir()} == {"rhfl", "fedmd"}


def test_build_names_the_model_that_the_server_must_have(run, tmp_path):
    told = [run("build", "fedavg", "--preset", one, "--out", tmp_path).stdout for one in ("recommended", "scratch")]
    assert ["starts from: run 'ridge' of yours" in text for text in told] == [True, False]


def test_build_does_not_overwrite_the_job_that_it_reads(run, tmp_path):
    assert run("build", "fedavg", "--out", tmp_path).exit_code == 0
    before = (tmp_path / "fedavg" / "meta.json").stat().st_ino
    one_line(run("build", tmp_path / "fedavg", "--out", tmp_path, "--rounds", 3), "is a job's source")
    assert (tmp_path / "fedavg" / "meta.json").stat().st_ino == before


def test_an_interrupted_run_reports_that_the_same_command_resumes_it(run, command, sites_dir, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(simulation, "run_in_process", interrupted)
    result = run(*command, "--sites-dir", sites_dir(2))
    assert result.exit_code == 130
    assert result.stderr.count("\n") == 2  # what the run starts with, and how to resume it
    assert "run the same command to resume" in result.stderr


def test_the_engine_gets_the_options_of_the_command_line(run, command, sites_dir, monkeypatch):
    calls = []

    def recorded(job, workspace, sites, sites_dir, how, allow_overlap, held_out, start):
        rounds = job.options("controller")["rounds"]
        calls.append((rounds, sites, how.engine, how.threads, how.wire, how.workers, allow_overlap))

    monkeypatch.setattr(running, "default_workers", lambda job, sites: 10 * sites)

    monkeypatch.setattr(running, "simulate", recorded)
    folder = sites_dir(3)
    run(*command, "--sites-dir", folder, "--sites", 2, "--engine", "flare", "--threads", 1, "--rounds", 5)
    more = ["--wire", "--workers", 2, "--set", "controller.rounds=6", "--allow-overlap"]
    run(*command, "--sites-dir", folder, *more)
    assert calls == [
        (5, ["site-1", "site-2"], "flare", 1, False, None, False),
        (6, ["site-1", "site-2", "site-3"], "in-process", None, True, 2, True),
    ]


def test_build_writes_a_job_folder_with_the_options_and_the_code(run, tmp_path, sites_dir):
    folder = sites_dir(2)
    command = ["build", "fedperl", "--out", tmp_path / "jobs", "--sites-dir", folder, "--rounds", 5]
    result = run(*command, "--byoc")
    assert result.exit_code == 0, result.output
    job = tmp_path / "jobs" / "fedperl"
    assert f"GRANDROUNDS_SITES={folder} nvflare simulator {job} -w WORKSPACE -n 2" in result.stdout
    arguments = json.loads((job / "app/config/config_fed_server.json").read_text())["workflows"][0]["args"]
    assert (arguments["rounds"], arguments["problem"]["dataset"]) == (5, "skin")
    assert (job / "app/custom/grandrounds/cli.py").is_file()
    assert "class_allow_list" not in result.stdout
    without = run(*command)
    assert "class_allow_list" in without.stdout
    assert not (job / "app/custom").exists()


def test_build_does_not_replace_a_folder_that_is_no_job(run, tmp_path):
    (tmp_path / "jobs" / "fedperl").mkdir(parents=True)
    one_line(run("build", "fedperl", "--out", tmp_path / "jobs"), "exists and is not a job folder")


def test_without_a_method_real_images_get_the_recommended_ridge(run, sites_dir, tmp_path, monkeypatch, make_summary):
    jobs = []

    def finished(job, workspace, *_):
        jobs.append(job)
        write_json(workspace / "results" / "summary.json", make_summary())

    monkeypatch.setattr(running, "simulate", finished)
    folder = sites_dir(3)
    result = run("simulate", "--sites-dir", folder, "--workspace", tmp_path / "run")
    assert result.exit_code == 0, (result.output, result.stderr, result.exception)
    assert "simulate local --sites-dir" in result.stdout
    assert f"build ridge --sites-dir {folder} --preset recommended " in result.stdout
    assert "--rounds" not in result.stdout  # its rounds are three, whatever is asked
    result = run("simulate", "--images", tmp_path / "images", "--layout", "site/class", "--workspace", tmp_path / "own")
    assert result.exit_code == 1  # these folders are no classes; that the method was left out is no error
    gr.run(gr.Sites.read(folder), workspace=tmp_path / "api", progress=False)
    gr.run(sites=folder, backbone="compact", workspace=tmp_path / "compact", progress=False)
    assert [(job.name, job.value("controller", "preset"), job.value("problem", "backbone")) for job in jobs] == [
        ("ridge-recommended", "recommended", "efficientnet_lite0"),
        ("ridge-recommended", "recommended", "efficientnet_lite0"),
        ("ridge", "", "compact"),
    ]


def test_synthetic_sites_need_a_method(run, tmp_path):
    for arguments in ([], ["--sites", 2]):
        result = run("simulate", *arguments, "--workspace", tmp_path / "run")
        assert result.exit_code == 2
        assert "name a method, such as grandrounds simulate fedavg" in result.stderr
        assert "--sites-dir" in result.stderr
    with pytest.raises(UsageError, match="name a method"):
        gr.run(gr.Sites.synthetic(), workspace=tmp_path / "run")
    with pytest.raises(UsageError, match="the method first"):
        gr.run(gr.Sites.synthetic(), 3, workspace=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("job", "words"),
    [("ssfl", "no pseudo-label: this is supervised training"), ("fedirm", "this is federated averaging")],
)
def test_a_method_that_has_nothing_to_do_says_so_before_the_run_and_below_the_table(
    run, sites_dir, tiny, tmp_path, job, words
):
    options = [option for option in tiny if "batch_size" not in option]
    folder = sites_dir(2)  # all labelled
    result = run("simulate", job, *options, "--sites-dir", folder, "--workspace", tmp_path / "run")
    assert result.exit_code == 0, (result.output, result.stderr, result.exception)
    assert words in result.stderr
    assert words in " ".join(result.stdout.split())
    report = gr.Run(tmp_path / "run").report(tmp_path / "report", progress=False)
    caveats = json.loads((report.parent / "report.json").read_text())["runs"][0]["caveats"]
    assert words in caveats[0]


def test_a_method_with_something_to_do_is_left_alone(sites_dir, images):
    records = [
        Record(name, "nevus", split, patient=name, labelled=number > 0)
        for number, (name, split) in enumerate(zip(images("site-2", 4), ("train", "train", "val", "test"), strict=True))
    ]
    folder = sites_dir(1, site_2=records)
    sites = ["site-1", "site-2"]
    assert nothing_to_do(load_job("fedperl"), sites, folder) == ""
    assert "no pseudo-label" in nothing_to_do(load_job("fedperl"), ["site-1"], folder)
    assert nothing_to_do(load_job("fedavg"), ["site-1"], folder) == ""
    assert nothing_to_do(load_job("fedirm"), sites, folder)
    assert nothing_to_do(load_job("fedperl"), sites, None) == ""


@pytest.mark.parametrize("inside", [".", "runs/own"])
def test_no_run_is_written_into_the_folder_of_the_images(run, tmp_path, inside):
    write_pictures(tmp_path / "images", [f"{name}/{number}.png" for name in "ab" for number in range(8)])
    before = sorted(tmp_path.rglob("*"))
    refused = run("simulate", "fedavg", "--images", tmp_path / "images", "--workspace", tmp_path / "images" / inside)
    assert refused.exit_code
    assert f"--workspace {tmp_path / 'runs'}/" in refused.stderr
    assert sorted(tmp_path.rglob("*")) == before
