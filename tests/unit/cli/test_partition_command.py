import html
import inspect
import io
import json
import re
import stat
import zipfile
from pathlib import Path

import pytest
from rich.console import Console

from grandrounds.commands.data import LAYOUTS, partition, values_of, what_next
from grandrounds.console.progress import reading_on
from grandrounds.csv_files import write_csv
from grandrounds.data.datasets.own_options import ManifestOptions
from grandrounds.data.families import DATASETS, OWN_DATASETS, register_dataset
from grandrounds.data.options import MutualOptions
from grandrounds.options import annotations_of, describe
from tests.federations import write_pictures

HEADER = "image,label,split,patient,source\n"


@pytest.fixture
def pictures(tmp_path, images):
    names = images("all", 64)
    rows = [f"{name},{('nevus', 'melanoma')[i % 2]},train,p{i},clinic-{i % 2}" for i, name in enumerate(names)]
    table = tmp_path / "all.csv"
    table.write_text(HEADER + "\n".join(rows) + "\n")
    return [table, "--root", tmp_path / "images", "--dataset-name", "skin", "--splits", "draw"]


def test_partition_shows_every_site_and_where_it_is(run, pictures, tmp_path):
    shares = ("--labelled", 0.25, *_set(validation=0.125, test=0.375))
    result = run("import", *pictures, "--scheme", "sites", "--sites", 2, *shares, "--out", tmp_path / "sites")
    assert result.exit_code == 0, result.output
    digest = json.loads((tmp_path / "sites" / "partition.json").read_text())["sites"]["site-2"]["sha256"]
    row = next(line for line in result.stdout.splitlines() if "│ site-2" in line)
    # 32 images of clinic-1: a half for training, a quarter of that labelled, an eighth for validation, the rest for tests.
    cells = [cell.strip() for cell in row.strip("│").split("│")]
    assert cells[:6] == ["site-2", "clinic-1", "16", "4", "4", "12"]
    assert cells[-1] == digest[:12]


def test_partition_as_json_is_the_description_on_disk(run, pictures, tmp_path):
    result = run("import", *pictures, "--scheme", "iid", "--sites", 4, "--out", tmp_path / "sites", "--json")
    assert json.loads(result.stdout) == json.loads((tmp_path / "sites" / "partition.json").read_text())


def test_another_partition_is_replaced_only_when_asked(run, pictures, tmp_path):
    command = ["import", *pictures, "--sites", 2, "--out", tmp_path / "sites"]
    assert run(*command).exit_code == 0
    refused = run(*command, "--seed", 2)
    assert refused.exit_code == 1
    assert "holds another partition" in refused.stderr
    assert run(*command, "--seed", 2, "--overwrite").exit_code == 0


def test_a_manifest_without_a_column_is_one_line_with_file_and_column(run, pictures, tmp_path):
    table = Path(pictures[0])
    table.write_text("image,split,patient\nall/0.png,train,p\n")
    result = run("import", *pictures, "--out", tmp_path / "sites")
    _one_line(result, f"{table}.*column 'label' is missing")


def test_a_label_outside_the_vocabulary_is_one_line_with_file_and_image(run, pictures, tmp_path):
    result = run("import", *pictures, "--out", tmp_path / "sites", "--classes", "nevus,melanom")
    _one_line(
        result, "all.csv, image 'all/1.png', column label: 'melanoma' is not one of the classes.*did you mean 'melanom'"
    )


def test_a_patient_in_two_splits_is_one_line_with_both_lines(run, pictures, tmp_path):
    table = Path(pictures[0])
    table.write_text(HEADER + "all/0.png,nevus,train,p1,c\nall/1.png,nevus,test,p1,c\n")
    result = run("import", *pictures, "--out", tmp_path / "sites", "--splits", "keep")
    _one_line(result, r"patient 'p1' is in two splits, train \(line 2\) and test \(line 3\)")


def test_scenario_and_server_are_given_to_the_partition(run, pictures, tmp_path):
    few = run(
        *["import", *pictures, "--sites", 2, "--out", tmp_path / "few", "--json"],
        *_set(scenario="few_labels", labelled_sites="site-2", few_labels_use="labelled", server_images=8),
    )
    description = json.loads(few.stdout)
    assert {key: description[key] for key in ("scenario", "labelled_sites", "few_labels_use", "server_images")} == {
        "scenario": "few_labels",
        "labelled_sites": ["site-2"],
        "few_labels_use": "labelled",
        "server_images": 8,
    }
    server = run(
        *["import", *pictures, "--sites", 2, "--out", tmp_path / "server", "--json"],
        *_set(scenario="server_labels", server_training=0.5, server_images=8),
    )
    assert json.loads(server.stdout)["sites"]["server"]["images"] == {"train": 4, "val": 4, "test": 0}


def test_the_command_line_and_make_partition_draw_the_same_random_numbers(run, pictures, tmp_path):
    from grandrounds.data.partition.schemes import make_partition

    drawn = run("import", *pictures, "--scheme", "iid", "--sites", 2, "--out", tmp_path / "a", "--json")
    table, _, root, *_ = pictures
    options = {"scheme": "iid", "sites": 2, "manifest": table, "dataset_name": "skin", "splits": "draw"}
    same = make_partition("manifest", root, tmp_path / "b", **options)
    assert json.loads(drawn.stdout)["sites"] == same["sites"]


def test_an_external_site_is_for_evaluation_and_not_for_training(run, pictures, tmp_path):
    result = run("import", *pictures, "--scheme", "external", "--out", tmp_path / "external")
    assert result.exit_code == 0, result.output
    assert f"grandrounds evaluate RUN --sites-dir {tmp_path / 'external'}" in result.stdout
    assert "simulate" not in result.stdout
    assert "simulate" in run("import", *pictures, "--sites", 2, "--out", tmp_path / "sites").stdout


def test_sites_without_labels_are_not_sent_to_a_job_that_needs_them(run, pictures, tmp_path):
    options = ["--sites", 2, "--out", tmp_path / "few", *_set(scenario="few_labels", labelled_sites="site-1")]
    result = run("import", *pictures, *options)
    assert result.exit_code == 0, result.output
    assert "grandrounds jobs" in result.stdout
    assert "simulate" not in result.stdout


def test_after_an_import_the_job_that_is_advised_first_is_next(run, pictures, tmp_path):
    result = run("import", *pictures, "--sites", 2, "--out", tmp_path / "sites")
    assert f"grandrounds simulate --sites-dir {tmp_path / 'sites'}" in result.stdout.splitlines()[-1]


def test_a_data_set_of_the_plug_in_is_pointed_at(run, tmp_path, monkeypatch):
    monkeypatch.setattr(OWN_DATASETS, "entries", {})
    refused = run("partition", "lesions", "--root", tmp_path, "--out", tmp_path / "x")
    assert refused.exit_code == 1
    assert "GRANDROUNDS_PLUGINS=published_data" in refused.stderr


def test_an_option_that_there_is_not_is_wrong_use_and_the_nearest_is_named(run, tmp_path):
    command = ["partition", "pbc", "--root", tmp_path, "--out", tmp_path / "x"]
    refused = run(*command, "--set", "alfa=0.5")
    assert refused.exit_code == 2
    assert refused.stderr.rstrip().endswith("did you mean alpha?")


@pytest.mark.parametrize(
    ("facts", "job"),
    [
        ({"dataset": "ham10000"}, "--sites-dir"),
        ({"dataset": "ham10000_malignancy"}, "fed_align_cl --sites-dir"),
        ({"dataset": "inbreast", "preprocess": "mammogram"}, "fed_align_cl --set problem.channels=1"),
        ({"dataset": "pbc", "public_set": {}}, "mdhfl --sites-dir"),
    ],
)
def test_the_job_that_was_made_for_a_data_set_is_named(facts, job):
    site = {"images": {"train": 3, "val": 1, "test": 1}}
    lines = what_next({"dataset_name": "images", "sites": {"site-1": site}, **facts}, Path("out"))
    assert any(f"grandrounds simulate {job}" in line for line in lines)
    assert ("says why" in lines[-2]) == (job == "--sites-dir")


def test_scaled_counts_are_reported():
    description = {
        "dataset_name": "lesions",
        "scaled": {"ISIC2019": {"needed": 20254, "found": 15316}},
        "sites": {"site-1": {"images": {"train": 3, "val": 1, "test": 1}}},
    }
    line = "ISIC2019 has 15316 images, the published counts need 20254: counts are scaled"
    assert line in what_next(description, Path("out"))


@pytest.fixture
def cells(tmp_path):
    """Two classes of PBC in its small layout: the folder."""
    rows = "".join(f"{label}/{n}.jpg,{label},PBC\n" for label in ("basophil", "ig") for n in range(40))
    (tmp_path / "pbc_barcelona_manifest.csv").write_text("image,label,source\n" + rows)
    with zipfile.ZipFile(tmp_path / "pbc_barcelona_96.zip", "w") as archive:
        for row in rows.splitlines():
            archive.writestr(row.split(",")[0], row)
    return tmp_path


@pytest.mark.parametrize("dataset", DATASETS)
def test_every_data_set_is_in_the_help_and_shows_its_options(run, dataset):
    assert dataset in LAYOUTS
    assert f"\n  {dataset} " in str(inspect.getdoc(partition))
    shown = run("partition", dataset, "--options").stdout
    for option in describe(DATASETS[dataset]):
        assert f"│ {option.name} " in shown
    assert ("noise_rate" in shown) == issubclass(DATASETS[dataset], MutualOptions)


def test_options_show_defaults_bounds_and_the_defaults_of_schemes(run):
    shown = run("partition", "pbc", "--options").stdout
    cells = {
        row[1]: row for row in ([cell.strip() for cell in line.split("│")] for line in shown.splitlines()) if row[1:]
    }
    assert cells["sites"][2:4] == ["an integer or null, at least 1", "10, 4 with mdhfl, 1 with external"]
    assert cells["noise_rate"][2:4] == ["a number, between 0 and 1", "0.0"]


def test_data_sets_of_plug_ins_are_listed_too(run, monkeypatch):
    monkeypatch.setattr(OWN_DATASETS, "entries", dict(OWN_DATASETS.entries))

    @register_dataset("clinic")
    def clinic(root, options):
        """Images of a clinic."""

    shown = run("partition", "--options").stdout
    assert "Images of a clinic." in shown
    assert all(name in shown for name in DATASETS)
    assert "patient_pattern" in run("partition", "clinic", "--options").stdout


@pytest.mark.parametrize("words", ["--sites 0", "--labelled 1.5", "--seed one", "--noise pair"])
def test_values_that_do_not_fit_and_flags_that_there_are_not_are_wrong_use(run, tmp_path, words):
    command = ["partition", "pbc", "--root", tmp_path, "--out", tmp_path / "sites", *words.split()]
    assert run(*command).exit_code == 2


@pytest.mark.parametrize(
    "assignment", ["variant=clean", "noise=flip", "noise_rate=2", "seed=one", "sites", "merge=patient"]
)
def test_assignments_that_do_not_fit_are_refused_by_name(run, cells, assignment):
    _one_line(
        run("partition", "pbc", "--root", cells, "--out", cells / "x", "--set", assignment), assignment[:4], (1, 2)
    )


@pytest.mark.parametrize("words", [[], ["pbc"], ["pbc", "--root", "x"]])
def test_a_name_a_root_and_a_folder_are_needed(run, words):
    assert run("partition", *words).exit_code == 2


@pytest.mark.parametrize("name", ["folder", "manifest", "ham"])
def test_another_name_is_no_published_data_set(run, tmp_path, name):
    _one_line(run("partition", name, "--root", tmp_path, "--out", tmp_path / "x"), "dataset must be one of")


@pytest.mark.parametrize(
    ("assignment", "value"),
    [
        ("labelled_sites=site-1, site-2", ["site-1", "site-2"]),
        ("windows=40:80,-600:1500", [(40, 80), (-600, 1500)]),
        ("sites=4", 4),
        ("sites=null", None),
        ("alpha=1e3", 1000.0),
        ("manifest=a=b.csv", Path("a=b.csv")),
        ("skip_unusable=true", True),
        ("dataset_name=7", "7"),
    ],
)
def test_text_becomes_the_value_of_the_options_type(assignment, value):
    assert values_of(annotations_of(ManifestOptions), [assignment]) == {assignment.partition("=")[0]: value}


def test_a_data_set_without_a_name_is_refused_in_a_line(run, pictures, tmp_path):
    result = run("import", *pictures, "--dataset-name", "", "--out", tmp_path / "sites")
    assert result.exit_code == 1
    assert "dataset_name must not be empty" in result.stderr


def test_preprocessing_is_given_to_the_sites(run, pictures, tmp_path):
    command = ["import", *pictures, "--sites", 2, "--out", tmp_path / "sites", "--json", "--preprocess", "mammogram"]
    assert json.loads(run(*command).stdout)["preprocess"] == "mammogram"


def test_windows_are_given_to_the_sites(run, pictures, tmp_path):
    command = ["import", *pictures, "--sites", 2, "--out", tmp_path / "sites", "--json", "--windows"]
    assert json.loads(run(*command, "40:80,-600:1500,40:380").stdout)["windows"] == [[40, 80], [-600, 1500], [40, 380]]
    _one_line(run(*command, "40:0"), "windows: the width of a window must be at least 1 Hounsfield unit, got 0.0")
    for wrong in ("40", "40:80:1", "a:b", ""):
        result = run(*command, wrong)
        assert result.exit_code != 0
        assert "CENTRE:WIDTH" in result.stderr


def test_a_partition_for_mutual_learning_takes_its_options(run, cells):
    out = cells / "sites"
    command = ["partition", "pbc", "--root", cells, "--out", out, "--sites", 2, *_set(test=0.5, validation=0)]
    noisy = _set(noise="pair", noise_rate=1, public_share=0.25, private_images=40)
    made = json.loads(run(*command, *noisy, "--json").stdout)
    assert made["public_set"]["images"] == 20
    assert [site["images"] for site in made["sites"].values()] == [{"train": 10, "val": 0, "test": 20}] * 2
    assert [site["wrong_labels"] for site in made["sites"].values()] == [10, 10]
    shown = run(*command, *noisy)
    assert "grandrounds simulate mdhfl --sites-dir" in " ".join(shown.stdout.split())
    _one_line(
        run(*command, *_set(public="folder")), "public folder needs public_root, the folder or archive of its images"
    )


def _set(**options):
    return [word for name, value in options.items() for word in ("--set", f"{name}={value}")]


def test_without_a_terminal_progress_of_reading_headers_is_printed_in_lines():
    stream = io.StringIO()
    with reading_on(Console(file=stream, width=200)) as report:
        for done in range(0, 101):
            report(done, 100)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "reading patients from DICOM headers: 0 of 100"
    assert lines[-1] == "reading patients from DICOM headers: 100 of 100"
    assert len(lines) == 11
    bar = io.StringIO()
    with reading_on(Console(file=bar, force_terminal=True, width=100)) as report:
        report(50, 100)
    assert "50%" in bar.getvalue()


def _one_line(result, pattern, status=(1,)):
    import re

    assert result.exit_code in status
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert re.match(f"error: .*{pattern}", result.stderr), result.stderr


def test_an_import_ends_with_a_page_of_images_and_their_rows_and_the_command_of_advise(tmp_path, run):
    rows = [
        {
            "image": f"{number}.png",
            "label": "ab"[number // 2 % 2],
            "patient": f"P{number // 2}",
            "age": str(30 + number),
        }
        for number in range(40)
    ]
    write_pictures(tmp_path / "in", [row["image"] for row in rows])
    write_csv(tmp_path / "t.csv", [*rows[0]], [list(row.values()) for row in rows])
    out = tmp_path / "<b>" / "sites"
    result = run("import", tmp_path / "t.csv", "--root", tmp_path / "in", "--out", out)
    assert result.exit_code == 0, result.output
    page = out.with_name("sites.html")
    text = page.read_text()
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    assert text.count('<img src="data:image/png;base64,') == 12
    assert text.count(">patient<") == 1
    shown = re.findall(
        r'<th scope="row">(\d+)\.png</th><td>([ab])</td><td>\w+</td><td>site-\d</td><td>(P\d+)</td>', text
    )
    assert len(shown) == 12
    assert all((label, patient) == ("ab"[int(name) // 2 % 2], f"P{int(name) // 2}") for name, label, patient in shown)
    assert "<b>" not in text
    assert "40 rows found = 40 used + 0 left out" in text
    advised = json.loads(run("advise", "--sites-dir", out, "--json").stdout)["command"]
    assert advised in html.unescape(text)
    assert advised in " ".join(result.stdout.split())
