import json
import stat

import pytest

from grandrounds.data.manifest import Record, manifest_digest


def test_sound_sites_pass_and_every_site_is_shown(run, sites_dir):
    result = run("doctor", "--sites-dir", sites_dir(2), "--image-size", 32)
    assert result.exit_code == 0, result.output
    assert "FAIL" not in result.stdout
    assert "2 sites: 0 failures" in result.stdout
    assert "site-2" in result.stdout


def test_a_failure_has_exit_status_one_and_names_the_site(run, sites_dir, images):
    lonely = [Record(images("site-9", 1)[0], "nevus", patient="p")]
    command = ["doctor", "--sites-dir", sites_dir(1, site_9=lonely), "--image-size", 32]
    assert "FAIL" in run(*command).stdout
    result = run(*command, "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert [finding for finding in found["site-1"] if finding["level"] == "failure"] == []
    messages = [finding["message"] for finding in found["site-9"] if finding["level"] == "failure"]
    assert messages[0].startswith("site-9: 1 training images, expected at least 2")


def test_an_empty_labelled_set_is_a_failure_like_in_a_run(run, sites_dir, images):
    records = [
        Record(name, "nevus", split, patient=name, labelled=split != "train")
        for name, split in zip(images("site-9", 4), ("train", "train", "val", "test"), strict=True)
    ]
    result = run("doctor", "--sites-dir", sites_dir(1, site_9=records), "--image-size", 32, "--json")
    assert result.exit_code == 1
    (message,) = [f["message"] for f in json.loads(result.stdout)["site-9"] if f["level"] == "failure"]
    assert message.startswith("site-9: empty labelled set")
    accepted = run("doctor", "--sites-dir", sites_dir(1, site_9=records), "--image-size", 32, "--accept-unlabelled")
    assert accepted.exit_code == 0


def test_a_site_configuration_is_examined_with_its_own_manifest(run, sites_dir):
    folder = sites_dir(1) / "site-1"
    manifest = folder / "manifest.csv"
    manifest.write_text(
        manifest.read_text().replace(
            "site-1/7.png,melanoma,test,site-1/7.png", "site-1/7.png,melanoma,test,site-1/0.png"
        )
    )
    command = ["doctor", "--site-config", folder / "grandrounds.json", "--dataset", "skin", "--image-size", 32]
    result = run(*command, "--classes", "nevus,melanoma", "--json")
    assert result.exit_code == 1
    (finding,) = json.loads(result.stdout)["site-1"]
    assert finding["level"] == "failure"
    assert "patient 'site-1/0.png' is in two splits" in finding["message"]


def test_an_unknown_data_set_is_one_line_with_those_that_are_defined(run, sites_dir):
    config = sites_dir(1) / "site-1" / "grandrounds.json"
    result = run("doctor", "--site-config", config, "--dataset", "lungs", "--classes", "a,b")
    assert result.exit_code == 1
    assert result.stderr == f"error: {config}: data set 'lungs' is not defined (defined: skin)\n"


@pytest.mark.parametrize(
    "arguments", [[], ["--sites-dir", "x", "--site-config", "y"], ["--site-config", "y", "--dataset", "skin"]]
)
def test_incomplete_arguments_are_wrong_use(run, arguments):
    assert run("doctor", *arguments).exit_code == 2


def test_test_images_alone_pass_for_evaluation_and_not_for_training(run, sites_dir, images):
    records = [
        Record(name, ("nevus", "melanoma")[n % 2], "test", patient=name) for n, name in enumerate(images("c", 4))
    ]
    command = ["doctor", "--sites-dir", sites_dir(0, clinic=records), "--image-size", 32]
    assert run(*command).exit_code == 1
    result = run(*command, "--purpose", "evaluation")
    assert result.exit_code == 0, result.output
    assert "1 sites: 0 failures, 1 warnings; these sites are ready for evaluation" in result.stdout


def test_evaluation_needs_labelled_test_images(run, sites_dir, images):
    records = [Record(name, "nevus", "train", patient=name) for name in images("c", 4)]
    command = ["doctor", "--sites-dir", sites_dir(0, clinic=records), "--image-size", 32, "--purpose", "evaluation"]
    result = run(*command, "--json")
    assert result.exit_code == 1
    messages = {finding["level"]: finding["message"] for finding in json.loads(result.stdout)["clinic"]}
    assert messages["failure"].startswith("clinic: no test images with a label")


def test_sites_that_share_a_picture_or_a_patient_fail_unless_it_is_allowed(run, sites_dir):
    folder = sites_dir(2)
    first, second = (folder / site / "manifest.csv" for site in ("site-1", "site-2"))
    rows = first.read_text().splitlines()
    second.write_text("\n".join([*second.read_text().splitlines(), rows[-1]]) + "\n")
    description = folder / "partition.json"
    content = json.loads(description.read_text())
    content["sites"]["site-2"]["sha256"] = manifest_digest(second)
    description.write_text(json.dumps(content))
    command = ["doctor", "--sites-dir", folder, "--image-size", 32]
    result = run(*command, "--json")
    assert result.exit_code == 1
    failures = [one["message"] for one in json.loads(result.stdout)["all sites"] if one["level"] == "failure"]
    assert [message.count("site-1: ") + message.count("site-2: ") for message in failures] == [2, 2]
    result = run(*command, "--allow-overlap")
    assert result.exit_code == 0, result.output
    assert "2 sites: 0 failures" in result.stdout
    result = run("simulate", "fedavg", "--sites-dir", folder, "--workspace", folder.parent / "run", "--image-size", 32)
    assert result.exit_code == 1
    assert "site-1" in result.stderr
    assert "--allow-overlap" in result.stderr
    assert not (folder.parent / "run" / "results").exists()


def test_a_page_shows_the_images_of_each_site(run, sites_dir, tmp_path):
    page = tmp_path / "pages" / "look.html"
    result = run("doctor", "--sites-dir", sites_dir(2), "--image-size", 32, "--page", page, "--json")
    assert result.exit_code == 0, result.output
    written = sorted(page.parent.iterdir())
    assert [path.name for path in written] == ["look-site-1.html", "look-site-2.html"]
    for path, (site, findings) in zip(written, list(json.loads(result.stdout).items())[:2], strict=True):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert path.read_text().count("<img ") == 8
        (message,) = [finding["message"] for finding in findings if finding["check"] == "page"]
        assert message.startswith(f"{site}: ")
        assert str(path) in message


def test_a_site_s_own_page_has_the_name_that_was_asked_for_and_the_job_s_preprocessing(run, sites_dir, tmp_path):
    config, page = sites_dir(1) / "site-1" / "grandrounds.json", tmp_path / "look.html"
    command = ["doctor", "--site-config", config, "--dataset", "skin", "--classes", "nevus,melanoma", "--page", page]
    assert run(*command, "--preprocessing", "proportion").exit_code == 0
    assert "64 by 64, colour" in page.read_text()
    assert "aspect kept, black added" in page.read_text()


@pytest.mark.parametrize(
    "arguments", [["--sites-dir", "x", "--page", "sites.json"], ["--kit", "x", "--page", "p.html"]]
)
def test_a_page_is_an_html_file_about_images(run, arguments):
    result = run("doctor", *arguments)
    assert result.exit_code == 2
    assert "--page" in result.stderr
