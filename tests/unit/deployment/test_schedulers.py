"""The job script for Slurm, with a program in srun's place, and the objects for Kubernetes, without a cluster."""

import os
import signal
import subprocess
import time
import zipfile

import pytest
import yaml
from nvflare.app_opt.job_launcher.workspace_cell_transfer import _zip_results_to_file

from grandrounds.deployment.kit.overlay import LEDGER_FOLDER
from grandrounds.deployment.kit.shipped import PROVISIONING

SCRIPT = PROVISIONING / "slurm" / "grandrounds.sbatch"
MANIFESTS = PROVISIONING / "kubernetes"
LIMIT_SECONDS = 600
SRUN = """#!/bin/bash
echo "$@" > "$STAND_IN/srun"
while [[ $1 == --* ]]; do shift; done
exec "$@"
"""
SITE = """#!/bin/bash
echo "$@ $HOME $TMPDIR $(umask)" > "$STAND_IN/arguments"
trap 'sleep .3; echo stopped > "$STAND_IN/stopped"; exit 0' TERM
touch "$STAND_IN/started"
while [ ! -e "$STAND_IN/end" ]; do sleep .05; done
exit $(cat "$STAND_IN/end")
"""


class Job:
    """The script as Slurm would run it."""

    def __init__(self, folder):
        self.folder, self.kit = folder, folder / "kits" / "hospital-a"
        (self.kit / "startup").mkdir(parents=True)
        for name, text in (("tools/srun", SRUN), ("venv/bin/grandrounds", SITE)):
            self.program(name, text)
        self.program("tools/scontrol", '#!/bin/bash\necho "$@" > "$STAND_IN/scontrol"\n')
        self.environment = {
            "PATH": f"{folder / 'tools'}:{os.environ['PATH']}",
            "STAND_IN": str(folder),
            "SLURM_JOB_ID": "4711",
            "VENV": str(folder / "venv"),
            "KIT": str(self.kit),
        }
        self.process = None

    def program(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def start(self, **changed):
        environment = {name: value for name, value in {**self.environment, **changed}.items() if value is not None}
        self.process = subprocess.Popen(
            ["bash", SCRIPT], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def await_started(self):
        deadline = time.monotonic() + LIMIT_SECONDS
        while not (self.folder / "started").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def end(self):
        """Exit status and output."""
        output, _ = self.process.communicate(timeout=LIMIT_SECONDS)
        return self.process.returncode, output

    def text(self, name):
        path = self.folder / name
        return path.read_text().strip() if path.exists() else None


@pytest.fixture
def job(tmp_path):
    found = Job(tmp_path)
    yield found
    if found.process is not None and found.process.poll() is None:
        (tmp_path / "end").write_text("0")
        found.process.kill()
        found.process.communicate()


def test_the_script_starts_the_kit_as_its_unit_does(job):
    job.start()
    job.await_started()
    (job.folder / "end").write_text("0")
    assert job.end() == (0, "")
    program = job.folder / "venv" / "bin" / "grandrounds"
    assert job.text("srun") == f"--ntasks=1 --kill-on-bad-exit=1 {program} kit start {job.kit}"
    assert job.text("arguments") == f"kit start {job.kit} {job.kit}/home {job.kit}/temporary 0077"
    assert (job.kit / "temporary").is_dir()
    assert job.text("scontrol") is None


def test_a_site_that_does_not_start_fails_the_job(job):
    (job.folder / "end").write_text("3")
    job.start()
    assert job.end() == (3, "")
    assert job.text("scontrol") is None


def test_at_the_end_of_the_time_the_site_stops_and_the_job_is_queued_again(job):
    job.start()
    job.await_started()
    job.process.send_signal(signal.SIGUSR1)
    assert job.end() == (0, "the time of this job ends: it is queued again\n")
    assert job.text("stopped") == "stopped", "the script waits until the site has stopped"
    assert job.text("scontrol") == "requeue 4711"


def test_a_job_that_is_cancelled_stops_the_site_and_stays_away(job):
    job.start()
    job.await_started()
    job.process.terminate()
    assert job.end() == (0, "")
    assert job.text("stopped") == "stopped"
    assert job.text("scontrol") is None


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"KIT": None}, "set KIT to the folder of the kit"),
        ({"KIT": "/no/such/kit"}, "/no/such/kit is no startup kit"),
        ({"VENV": "/no/such/venv"}, "set VENV to the environment"),
    ],
)
def test_what_is_missing_is_named_before_anything_starts(job, changed, words):
    job.start(**changed)
    status, output = job.end()
    assert status == 1
    assert words in output
    assert job.text("srun") is None


def test_one_job_of_a_site_runs_at_a_time_and_gets_its_signal_in_time():
    lines = [line.split(maxsplit=1)[1] for line in SCRIPT.read_text().splitlines() if line.startswith("#SBATCH")]
    options = dict(line.removeprefix("--").partition("=")[::2] for line in lines)
    assert options["dependency"] == "singleton"
    assert options["signal"] == "B:USR1@90"
    assert options["ntasks"] == options["nodes"] == "1"
    assert {"requeue", "mem", "time"} <= options.keys()


def objects(name):
    return list(yaml.safe_load_all((MANIFESTS / name).read_text()))


def pods():
    """Name and specification of each pod."""
    stateful = next(found for found in objects("site.yml") if found["kind"] == "StatefulSet")
    (loader,) = objects("loader.yml")
    return {"site": stateful["spec"]["template"]["spec"], "loader": loader["spec"]}


def test_a_kits_keys_and_rules_are_read_only_in_the_sites_pod():
    (container,) = pods()["site"]["containers"]
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    kit = [path for path, mount in mounts.items() if mount["name"] == "kit"]
    assert kit == ["/kit", "/kit/startup", "/kit/local", f"/kit/local/{LEDGER_FOLDER}"]
    assert all(mounts[path]["subPath"] == path.removeprefix("/") for path in kit)
    writable = {path for path, mount in mounts.items() if not mount.get("readOnly")}
    assert writable == {"/kit", f"/kit/local/{LEDGER_FOLDER}", "/tmp", "/dev/shm"}
    assert "command" not in container, "the image's entry point is the service, which begins with the doctor"


@pytest.mark.parametrize("name", ["site", "loader"])
def test_the_pods_may_do_little(name):
    pod = pods()[name]
    assert pod["automountServiceAccountToken"] is False
    security = pod["securityContext"]
    assert security["runAsNonRoot"]
    dockerfile = (PROVISIONING / "containers" / "Dockerfile").read_text()
    assert f"USER {security['runAsUser']}\n" in dockerfile
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert "memory" in container["resources"]["limits"]
    assert "@sha256:" in container["image"]
    claimed = {volume["name"] for volume in pod["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == claimed


def test_one_pod_has_the_kit_and_nobody_calls_it():
    (claim,) = objects("volume.yml")
    policy, site = objects("site.yml")
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
    assert site["spec"]["replicas"] == 1
    labels = site["spec"]["template"]["metadata"]["labels"]
    assert site["spec"]["selector"]["matchLabels"] == policy["spec"]["podSelector"]["matchLabels"] == labels
    assert "Ingress" in policy["spec"]["policyTypes"]
    assert "ingress" not in policy["spec"]
    grace = site["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace > 10, "the service stops in ten seconds"


def test_kubernetes_own_models_take_the_objects():
    """Every key is one of Kubernetes' and has the right type, where its client is installed."""
    client = pytest.importorskip("kubernetes.client")
    api = client.ApiClient()
    for name in ("volume.yml", "site.yml", "loader.yml"):
        for found in objects(name):
            kind = found["apiVersion"].rpartition("/")[2].capitalize() + found["kind"]
            taken = api._ApiClient__deserialize(found, kind)
            assert api.sanitize_for_serialization(taken) == found


def test_of_a_jobs_own_pod_flare_brings_back_the_jobs_folder_alone(tmp_path):
    """Why jobs have no pods of their own: this is what FLARE packs at their end."""
    job = "0d8fba9f-0e7e-4b0a-9b62-3c7f9b1f3a11"
    for name in (f"{job}/log.txt", f"local/{LEDGER_FOLDER}/ledger.jsonl", "grandrounds/run/state.pt"):
        path = tmp_path / "workspace" / name
        path.parent.mkdir(parents=True)
        path.write_text("x")
    _zip_results_to_file(str(tmp_path / "workspace"), job, str(tmp_path / "results.zip"))
    with zipfile.ZipFile(tmp_path / "results.zip") as archive:
        assert archive.namelist() == [f"{job}/log.txt"]
