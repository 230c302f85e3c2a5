"""The runbook typed as it stands: from nothing to a federated head, by the commands of ``provisioning/README.md`` alone.

What a person edits or sends (names in copies of the templates, requests and answers) is no command; what the page says to
leave out where there is no reviewed wheel, no data set and no GPU is left out.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from grandrounds.deployment.kit.certificates import connection_fault
from grandrounds.deployment.kit.read import processes_of, read_kit
from grandrounds.deployment.kit.shipped import PROVISIONING
from tests.documentation.pages import text_of
from tests.federations import await_true

pytestmark = [pytest.mark.provisioned, pytest.mark.timeout(1800)]

PAGE = "provisioning/README.md"
MOST_COMMANDS = 35
SERVER, RESEARCHER = "localhost", "researcher@consortium.example"
HOSPITALS = ("hospital-a", "hospital-b", "hospital-c")
FILES = {SERVER: "server.yml", RESEARCHER: "researcher.yml"} | dict.fromkeys(HOSPITALS, "hospital.yml")
KITS = {name: "server" if name == SERVER else name for name in FILES}
LEFT_OUT = (
    " --wheel grandrounds-0.1.0-py3-none-any.whl",
    *(" --datasets grandrounds.json", " --gpus 1 --gpu-memory 24", " --dataset skin --classes nevus,melanoma"),
)


def sections():
    """The numbered steps of the page and what follows, by the first word or number of their headings."""
    parts = re.split(r"^## (\w+)\b.*$", text_of(PAGE), flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def lines_of(section):
    """The lines of a section's blocks for a shell, each whole and without its comment."""
    text = "\n".join(re.findall(r"^```bash\n(.*?)^```", section, re.DOTALL | re.MULTILINE)).replace("\\\n", " ")
    return [re.sub(r"\s+#.*", "", line) for line in text.splitlines()]


def in_text(section, begin):
    """The one command in the text of a section, or in its table, that begins so."""
    (found,) = set(re.findall(rf"`({re.escape(begin)}[^`]*)`", section))
    return found


class Person:
    """Types commands in one folder, as all participants of a trial on one machine do."""

    def __init__(self, place):
        self.place, self.typed = place, []
        (place / "home").mkdir(parents=True)

    def edit(self, name, port):
        """A copy of a participant's template, or of the profile, with the names of this consortium."""
        text = (PROVISIONING / "distributed" / FILES.get(name, f"{name}.yml")).read_text()
        text = text.replace("fl.consortium.example", SERVER).replace("8002", str(port))
        text = text.replace("hospital-a", name).replace("hospital_a", name.replace("-", "_"))
        (self.place / f"{name}.yml").write_text(text)

    def type(self, command, name="hospital-a", kit="", fingerprint="", check=True):
        """Type a command of the page for one participant; its output."""
        for left_out in LEFT_OUT:
            command = command.replace(left_out, "")
        named = {"kits/hospital-a": f"kits/{kit}", "hospital.yml": f"{name}.yml", "hospital-a": name}
        for shown, real in (named | {"SHA256:...": fingerprint}).items():
            command = command.replace(shown, real)
        self.typed.append(re.sub(r"\bKIT\b", f"kits/{kit}", command))
        print(self.typed[-1], flush=True)
        return self._run(self.typed[-1], check)

    def again(self):
        """The last command once more; nothing where it ends with an error, as while others start."""
        return self._run(self.typed[-1], check=False)

    def stop(self, kit):
        """End a participant, if it runs."""
        if processes_of(self.place / "kits" / kit):
            self._run(f"grandrounds kit stop kits/{kit}", check=False)

    def _run(self, command, check=True):
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        ended = subprocess.run(
            ["bash", "-c", command],
            env={**os.environ, "PATH": path, "HOME": str(self.place / "home"), "COLUMNS": "500"},
            cwd=self.place,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert ended.returncode == 0 or not check, f"{command}\n{ended.stdout}{ended.stderr}"
        return "" if ended.returncode else ended.stdout


def test_the_runbook_leads_from_nothing_to_a_federated_head(tmp_path, free_port, shared_cache):
    page, person, port = sections(), Person(tmp_path / "place"), free_port()
    person.typed += lines_of(page["1"])  # they install packages, which are here
    for name in ("profile", *FILES):
        person.edit(name, port)
    made = person.type(in_text(page["2"], "nvflare cert init"))
    fingerprint = re.search(r"SHA256:[0-9A-F:]+", made)[0]
    steps = ("nvflare cert request", "nvflare cert approve", "nvflare package")
    requested, approved, packaged = (in_text(page["2"], begin) for begin in steps)
    for name, kit in KITS.items():
        person.type(requested, name)
        shutil.copy(person.place / name / f"{name}.request.zip", person.place)  # it is sent
        person.type(approved, name)
        person.type(packaged, name, kit, fingerprint)

    (overlay,), (doctor, _), (submitted, *_) = (lines_of(page[number]) for number in "345")
    started, seen = in_text(page["4"], "grandrounds kit start"), "grandrounds status --kit KIT"
    assert f"`{seen}`" in page["Watch"]
    participants = {name: kit for name, kit in KITS.items() if name != RESEARCHER}
    try:
        for name, kit in participants.items():
            for command in (overlay, doctor, started):
                person.type(command, name, kit)
            await_true(lambda: not connection_fault(read_kit(person.place / "kits" / KITS[SERVER])))
        person.type(seen, RESEARCHER, RESEARCHER, check=False)
        await_true(lambda: all(site in person.again() for site in HOSPITALS))
        reported = person.type(submitted, RESEARCHER, RESEARCHER)
    finally:
        for kit in participants.values():
            person.stop(kit)
    assert len(person.typed) <= MOST_COMMANDS, person.typed
    assert processes_of(person.place / "kits") == []
    results = next(line.removeprefix("results: ") for line in reported.splitlines() if line.startswith("results: "))
    summary = json.loads((person.place / results / "summary.json").read_text())
    assert (summary["configuration"]["method"], summary["status"]) == ("RidgeController", "finished")
    assert [entry["answered"] for entry in summary["rounds"]] == [list(HOSPITALS)] * 3
    assert torch.load(person.place / results / "selected.pt", weights_only=True)
