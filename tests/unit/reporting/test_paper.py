"""The parts of an article: their numbers are those of the runs, and what is not recorded is said to be so."""

import csv
import io
import re
import shutil
import subprocess
import zipfile
from statistics import fmean, stdev
from xml.etree import ElementTree

import pytest

import grandrounds as gr
from examples.paper import __main__ as command
from examples.paper import folder as paper_folder
from examples.paper import word
from examples.paper.annex import annex_tables
from examples.paper.checklists import CHECKLISTS, FOR_AUTHORS, checklist
from examples.paper.drawings import at_journal_widths
from examples.paper.folder import write_paper
from examples.paper.latex import latex_table, latex_text
from examples.paper.tables import PaperTable
from examples.paper.word import word_document
from grandrounds.errors import ConfigurationError
from grandrounds.plotting import Drawing, new_axes, new_figure
from grandrounds.reporting.run import Spent
from grandrounds.reporting.runs import read_run

from .conftest import CLASSES, configured, events

WORD = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
SCORES = ("accuracy", "balanced_accuracy", "f1_weighted")


@pytest.fixture
def unillustrated(monkeypatch):
    monkeypatch.setattr(paper_folder, "paper_drawings", lambda report: [])


@pytest.fixture
def seeds(make_run):
    return [
        make_run(f"perl_{seed}", right=right, configuration=configured(seed=seed))
        for seed, right in ((1, 0.7), (2, 0.8), (3, 0.85))
    ]


def paper(runs, out, **options):
    """Write the parts of an article of workspaces, or of workspaces by name."""
    named = list(runs.items()) if isinstance(runs, dict) else [(None, run) for run in runs]
    return write_paper(named, out, **options)


def lines_of(path):
    return list(csv.DictReader(path.read_text().splitlines()))


def word_tables(content):
    """The cells of each table of a Word document."""
    document = ElementTree.fromstring(zipfile.ZipFile(io.BytesIO(content)).read("word/document.xml"))
    return [
        [
            ["".join(text.text or "" for text in cell.iter(f"{WORD}t")) for cell in row.iter(f"{WORD}tc")]
            for row in table.iter(f"{WORD}tr")
        ]
        for table in document.iter(f"{WORD}tbl")
    ]


def test_several_seeds_are_one_row_with_the_mean_and_deviation_of_the_runs_scores(seeds, tmp_path, unillustrated):
    out = tmp_path / "paper"
    paper(seeds, out, word="Three seeds")
    frames = [gr.Run(path).scores() for path in seeds]
    rows = {(row["test images of"], row["score"]): row for row in lines_of(out / "tables" / "scores.csv")}
    rows |= {(row["test images of"], row["score"]): row for row in lines_of(out / "tables" / "scores_by_site.csv")}
    latex = (out / "tables" / "scores.tex").read_text() + (out / "tables" / "scores_by_site.tex").read_text()
    scores, by_site, *_ = word_tables((out / "tables.docx").read_bytes())
    printed = {row[1]: row for row in (*scores[1:], *by_site[1:])}
    for name in frames[0].index:
        method = "reference" if name == "chance" or name.startswith("always") else "perl"
        (line,) = (line for line in latex.splitlines() if line.startswith(rf"{method} & {name} & "))
        for column, score in enumerate(SCORES, 4):
            values = [frame.loc[name, score] for frame in frames]
            found = rows[name, score]
            assert (found["method"], found["seeds"]) == (method, "3")
            assert float(found["value"]) == pytest.approx(fmean(values), abs=1e-6)
            assert float(found["sd"]) == pytest.approx(stdev(values), abs=1e-6)
            assert f"{fmean(values):.3f} $\\pm$ {stdev(values):.3f}" in line
            assert printed[name][column].startswith(f"{fmean(values):.3f} ± {stdev(values):.3f}")
    assert {row["method"] for row in lines_of(out / "tables" / "scores.csv")} == {"perl", "reference"}


def test_one_run_has_its_own_scores_with_their_intervals(make_run, tmp_path, unillustrated):
    run = make_run()
    paper({"mine": run}, tmp_path / "paper", word="One run")
    frame = gr.Run(run).scores()
    for row in lines_of(tmp_path / "paper" / "tables" / "scores.csv"):
        assert float(row["value"]) == pytest.approx(frame.loc[row["test images of"], row["score"]], abs=1e-6)
        assert row["sd"] == ""
    pooled = next(
        row for row in word_tables((tmp_path / "paper" / "tables.docx").read_bytes())[0] if row[1] == "pooled"
    )
    assert re.fullmatch(r"0\.800 \[0\.\d{3}, 0\.\d{3}\]", pooled[4])


def test_two_methods_are_compared_and_each_has_its_class_scores(seeds, make_run, tmp_path, unillustrated):
    other = make_run("other", right=0.6, configuration={**configured(), "method": "LocalController"})
    paper([*seeds, other], tmp_path / "paper")
    tables = tmp_path / "paper" / "tables"
    rows = lines_of(tables / "scores.csv")
    assert {row["method"] for row in rows} == {"perl", "other", "reference"}
    assert sum(row["test images of"] == "chance" for row in rows) == len(SCORES)  # once, not for each method
    assert [(row["method"], row["reference"]) for row in lines_of(tables / "comparison.csv")] == [("perl", "other")]
    classes = lines_of(tables / "scores_by_class.csv")
    assert {(row["method"], row["class"]) for row in classes} == {
        (method, name) for method in ("perl", "other") for name in CLASSES
    }


def test_names_with_signs_of_latex_and_xml_are_text(make_run, tmp_path, unillustrated):
    name = r"a_b & 50 % <i>$x$ #1 ~{c}^\ |"
    paper({name: make_run()}, tmp_path / "paper", word=name)
    latex = (tmp_path / "paper" / "tables" / "scores.tex").read_text()
    expected = (
        r"a\_b \& 50 \% \textless{}i\textgreater{}\$x\$ \#1 \textasciitilde{}\{c\}\textasciicircum{}\textbackslash{} "
        r"\textbar{}"
    )
    assert expected in latex
    assert not re.search(r"(?<!\\)[%#$](?!\\pm)", re.sub(r"\$\\pm\$", "", latex))
    assert word_tables((tmp_path / "paper" / "tables.docx").read_bytes())[0][1][0] == name
    assert latex_text("[x]\n") == "{[}x{]} "


def test_a_folder_in_which_something_is_is_refused_and_left_alone(make_run, tmp_path):
    out = tmp_path / "paper"
    out.mkdir()
    (out / "mine.tex").write_text("text")
    with pytest.raises(ConfigurationError, match=r"not empty.*another folder"):
        paper([make_run()], out)
    assert [path.name for path in out.iterdir()] == ["mine.tex"]
    with pytest.raises(ConfigurationError, match="is a file"):
        paper([make_run()], out / "mine.tex")


def test_after_an_error_nothing_is_written(make_run, tmp_path, unillustrated, monkeypatch):
    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(paper_folder, "latex_preview", fail)
    run = make_run()
    before = sorted(tmp_path.iterdir())
    with pytest.raises(OSError, match="disk full"):
        paper([run], tmp_path / "paper")
    assert sorted(tmp_path.iterdir()) == before


def test_the_annex_says_what_left_which_site_in_which_round(make_run):
    recorded = events()
    update = {"kind": "model_update", "bytes": 1234, "treated": "clip_and_noise"}
    for event in recorded:
        if event["event"] == "answer" and event["site"] == "site-2":
            event["released"] = {"update": update}
            event["metrics"] = {**event["metrics"], "privacy.epsilon": float(event["round"])}
    told = {"site-2": {"treated": {"update": "clip_and_noise"}, "epsilon": 3.0}}
    found = read_run(make_run(recorded=recorded, privacy=told), "run")
    sites, rounds = annex_tables([found])
    assert ["run", "site-2", "2", "train", "update", "model_update", "1234", "clip_and_noise", "2"] in rounds.rows
    assert [row[4:8] for row in rounds.rows if row[1] == "site-1" and row[2] == "1"] == [
        ["loss", "numbers", "not recorded", "none reported"]
    ]
    row = next(row for row in sites.rows if row[1] == "site-2")
    assert row[4:] == ["update 2000000 B", "2000000", "3500000", "update: clip_and_noise", "3"]


def test_a_record_without_releases_says_so_and_a_ledger_gives_the_epsilon(make_run):
    found = read_run(make_run(), "run")
    spent = (Spent("site-1", "patient", 2.5, 1e-5, ((1, 1.25), (3, 2.5))),)
    object.__setattr__(found.origin, "spent", spent)
    sites, rounds = annex_tables([found])
    of_site = [row for row in rounds.rows if row[1] == "site-1" and row[5] != "numbers"]
    assert [row[4:8] for row in of_site] == [["not recorded"] * 4] * 3
    assert [row[8] for row in of_site] == ["1.25", "1.25", "2.5"]
    assert sites.rows[0][-1] == "2.5 (delta 1e-05, per patient, added or removed)"
    assert {row[8] for row in rounds.rows if row[1] == "site-2"} == {"not recorded"}


def test_checklists_have_every_item_and_only_what_the_record_knows(make_run, tmp_path, unillustrated):
    paper([make_run()], tmp_path / "paper")
    for name in CHECKLISTS:
        items = checklist(name)
        rows = lines_of(tmp_path / "paper" / "checklists" / f"{name}.csv")
        assert [row["item"] for row in rows] == [item.number for item in items]
        for row, item in zip(rows, items, strict=True):
            assert (row["state"] == FOR_AUTHORS) == (not item.subjects)
            assert row["from the record"] == "" or item.subjects
        text = (tmp_path / "paper" / "checklists" / f"{name}.md").read_text()
        assert text.count("\n| ") == len(items) + 1
    assert [item.number for item in checklist("claim")] == [str(number) for number in range(1, 45)]
    assert len({item.number.rstrip("abcdefg") for item in checklist("tripod_ai")}) == 27


def test_the_methods_section_has_options_and_calls_missing_facts_by_their_name(make_run, tmp_path, unillustrated):
    machine = {"system": "Linux", "processor": "x86_64", "cores": 8, "graphics": ["NVIDIA A"]}
    paper({"run": make_run(machine=machine)}, tmp_path / "paper")
    text = (tmp_path / "paper" / "methods.md").read_text().replace("\\", "")
    for expected in ("backbone compact", "seed 1", "grandrounds 0.1.0", "Division: not recorded", "8 cores, NVIDIA A",
                     "model of round 2, by balanced accuracy", "3 of 3 rounds, finished"):  # fmt: skip
        assert expected in text
    assert ".." not in text


def test_figures_have_the_width_of_a_column_and_of_a_page():
    single, axes = new_axes()
    axes.set_title("title", fontsize=9.5)
    several = new_figure(6, 4)
    several.subplots(1, 2)
    for drawing in (Drawing("one", single, "", ""), Drawing("two", several, "", "")):
        found = dict(at_journal_widths(drawing))
        assert list(found) == [f"{w}mm/{drawing.name}.{kind}" for w in (85, 174) for kind in ("svg", "pdf")]
        for width in (85, 174):
            points = width / 25.4 * 72
            svg = float(re.search(rb'width="([\d.]+)pt"', found[f"{width}mm/{drawing.name}.svg"]).group(1))
            box = re.search(rb"/MediaBox \[ *0 0 ([\d.]+)", found[f"{width}mm/{drawing.name}.pdf"])
            assert svg == pytest.approx(points, abs=0.1)
            assert float(box.group(1)) == pytest.approx(points, abs=0.1)
    assert axes.title.get_fontsize() == pytest.approx(9.5 * 0.82)


def test_the_command_says_how_many_files_there_are(make_run, tmp_path, unillustrated, monkeypatch, capsys):
    out = tmp_path / "paper"
    monkeypatch.setattr("sys.argv", ["paper", f"mine={make_run()}", "--out", str(out)])
    command.main()
    files = [path for path in out.rglob("*") if path.is_file()]
    assert f"{len(files)} files" in capsys.readouterr().out
    assert "mine" in (out / "tables" / "scores.csv").read_text()


def test_the_command_refuses_a_full_folder_in_one_line(make_run, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["paper", str(make_run()), "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        command.main()
    assert ended.value.code == 1
    assert re.fullmatch(r"error: .*name another folder.*\n", capsys.readouterr().err)


def test_a_word_document_has_no_control_character():
    table = PaperTable("t", "caption", ["a", "b"], [["x\x00y", "1"]])
    assert word_tables(word_document("title\n", [("one", "text\x07")], [table])) == [[["a", "b"], ["x y", "1"]]]


def test_without_python_docx_word_documents_are_refused_and_all_else_is_written(
    make_run, tmp_path, unillustrated, monkeypatch
):
    monkeypatch.setattr(word, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match="pip install python-docx"):
        paper([make_run()], tmp_path / "paper", word="title")
    assert not (tmp_path / "paper").exists()
    paper([make_run()], tmp_path / "paper")
    assert (tmp_path / "paper" / "tables" / "scores.tex").is_file()
    assert not [*(tmp_path / "paper").rglob("*.docx")]


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex")
def test_latex_takes_the_preview(make_run, tmp_path, unillustrated):
    paper({"a_b & 50 % [x]": make_run()}, tmp_path / "paper")
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "preview.tex"],
        cwd=tmp_path / "paper",
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:]


def test_a_long_text_is_broken_into_lines():
    table = PaperTable("t", "c", ["a", "b", "c"], [["x", "word " * 20, "1"]], 2)
    assert re.search(r"\{l>\{\\raggedright\\arraybackslash\}p\{0\.\d+\\linewidth\}r\}", latex_table(table))
