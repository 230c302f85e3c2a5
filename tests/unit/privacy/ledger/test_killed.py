"""A gate that is killed at any moment between the task and the answer has booked whatever it has sent."""

import json
import os
import subprocess
import sys
from pathlib import Path

from grandrounds.privacy.ledger.ledger import Ledger
from grandrounds.privacy.ledger.lines import DatasetIdentity, Purpose
from grandrounds.protocol.spending import Mechanism, Spending, Unit

# One child after another is killed just before the N-th line that it runs in the package, before each line of the functions
# between the clipping and the sending, or in the middle of its N-th write, until one gets through. The children are forks of
# a process that has imported everything.
SCRIPT = """
import json, os, signal, sys
from pathlib import Path
import dp_accounting, torch
from grandrounds.privacy.ledger.lines import DatasetIdentity
from grandrounds.protocol.messages import PROTOCOL, ReleaseKind
from grandrounds.privacy.gate.gate import Gate, TaskFacts
from grandrounds.privacy.gate.inspection import Answer, Part
from grandrounds.privacy.gate.kinds import Expected
from grandrounds.privacy.ledger.ledger import Ledger
from grandrounds.privacy.gate.policy import ReleaseRule, SitePolicy
from grandrounds.privacy.gate.treatments import ClipAndNoise
from grandrounds.protocol.spending import Unit

torch.set_num_threads(1)
os.fsync = lambda descriptor: None  # matters when the power fails, not when a process does; and it is slow
PACKAGE = os.path.dirname(sys.modules["grandrounds"].__file__)

def work(folder):
    Ledger.create(folder / "privacy", "site-1")
    rule = ReleaseRule(ReleaseKind.MODEL_UPDATE, "update", ClipAndNoise(1.0, 32.0))
    gate = Gate(SitePolicy(Unit.SITE, 1e-5, (rule,)), folder / "privacy", "site-1")
    for number in (1, 2):
        expected = Expected(number, "r", 2, {"w": ((3,), torch.float32)}, {})
        facts = TaskFacts("job", "train", "run", DatasetIdentity("skin", "f"), expected)
        gate.admit(facts)
        header = {"protocol": PROTOCOL, "round": number, "run_id": "r", "samples": 3}
        part = Part("WEIGHT_DIFF", {"release": "model_update"}, {"w": torch.ones(3)})
        gate.release(facts, Answer(header, {"update": part}))
        (folder / f"sent-{number}").touch()

def die():
    os.kill(os.getpid(), signal.SIGKILL)

STEPS = {"release", "_append"}

def kill_at_line(point, functions=None):
    seen = 0
    def trace(frame, event, argument):
        nonlocal seen
        code = frame.f_code
        if not code.co_filename.startswith(PACKAGE) or (functions and code.co_name not in functions):
            return None
        if event == "line":
            seen += 1
            if seen == point:
                die()
        return trace
    sys.settrace(trace)

def kill_at_step(point):
    kill_at_line(point, STEPS)

def kill_at_write(point):
    write = os.pwrite
    seen = 0
    def half(descriptor, data, offset):
        nonlocal seen
        seen += 1
        if seen == point:
            write(descriptor, data[: len(data) // 2], offset)
            die()
        return write(descriptor, data, offset)
    os.pwrite = half

def run(folder, arm, point):
    folder.mkdir()
    child = os.fork()
    if child == 0:
        arm(point)
        work(folder)
        os._exit(0)
    return os.waitpid(child, 0)[1]

base, stride = Path(sys.argv[1]), int(sys.argv[2])
counts = {}
for name, arm, step in (("line", kill_at_line, stride), ("step", kill_at_step, 1), ("write", kill_at_write, 1)):
    point = 1
    while run(base / f"{name}-{point:05d}", arm, point) != 0:
        point += step
    counts[name] = point
print(json.dumps(counts))
"""
STRIDE = 43  # prime, so that the two rounds are hit at different lines


def test_the_ledger_is_never_under_the_truth_and_opens_again(tmp_path: Path, monkeypatch):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path), str(STRIDE)],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": ":".join(sys.path)},
        timeout=600,
        check=True,
    )
    counts = json.loads(done.stdout)
    assert counts["line"] > 400
    assert counts["step"] > 30
    assert counts["write"] == 4  # the opening and two bookings, and then none
    skin = DatasetIdentity("skin", "f")
    update = Spending(Mechanism.GAUSSIAN, Unit.SITE, 2.0, 32.0)
    outcomes = set()
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    for folder in sorted(tmp_path.iterdir()):
        ledger = Ledger.create(folder / "privacy", "site-1")
        booked, sent = len(ledger.content().bookings), len(list(folder.glob("sent-*")))
        assert sent <= booked <= sent + 1, folder.name
        ledger.book(Purpose("job-2", "run", 1, "update"), skin, update, 1e-5)
        assert len(ledger.content().bookings) == booked + 1, folder.name
        outcomes.add((booked, sent))
    assert outcomes == {(0, 0), (1, 0), (1, 1), (2, 1), (2, 2)}
