"""torchvision is imported late, and also where its operators do not fit; other failures pass."""

import os
import subprocess
import sys
from pathlib import Path

import grandrounds

PACKAGES = str(Path(grandrounds.__file__).parents[1])

# What a torchvision built for CUDA does beside a CPU-only torch: half of it is loaded when it asks for its operators.
BROKEN = """
import torchvision.half
import torch
torch.library.register_fake("torchvision::nms")(lambda dets, scores, iou_threshold: dets)
torch.library.register_fake("torchvision::qnms")(lambda dets, scores, iou_threshold: dets)
"""


def run(script: str, *first_on_the_path: str) -> str:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*first_on_the_path, PACKAGES])}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def fake_torchvision(folder: Path, source: str) -> str:
    (folder / "torchvision").mkdir()
    (folder / "torchvision" / "__init__.py").write_text(source)
    (folder / "torchvision" / "half.py").write_text("import torch")
    return str(folder)


def test_the_registry_imports_it_only_when_it_builds_one_of_its_networks():
    output = run("""
import sys, torch
from grandrounds.models.registry import build_model
from grandrounds.protocol.problem import ModelSpec
build_model(ModelSpec("compact", classes=3), seed=1)
print(sorted({name.partition(".")[0] for name in sys.modules} & {"torchvision", "monai", "nvflare"}))
print(build_model(ModelSpec("resnet18", classes=3), seed=1).eval()(torch.zeros(1, 3, 64, 64)).shape)
from grandrounds.models.weights import import_torchvision
assert import_torchvision() is import_torchvision() is sys.modules["torchvision"]
""")
    assert output == "[]\ntorch.Size([1, 3])\n"


def test_missing_operators_are_declared_and_the_import_repeated(tmp_path):
    output = run(
        """
import sys
try:
    import torchvision
except RuntimeError as error:
    print(error)
from grandrounds.models.weights import import_torchvision
half = sys.modules["torchvision.half"]
module = import_torchvision()
print(module.__file__ is not None, sys.modules["torchvision.half"] is not half)
""",
        fake_torchvision(tmp_path, BROKEN),
    )
    assert output == "operator torchvision::nms does not exist\nTrue True\n"


def test_another_failure_passes_through_after_one_attempt(tmp_path):
    output = run(
        """
from grandrounds.models.weights import import_torchvision
try:
    import_torchvision()
except RuntimeError as error:
    print(error)
""",
        fake_torchvision(tmp_path, 'print("attempt")\nraise RuntimeError("something else")'),
    )
    assert output == "attempt\nsomething else\n"
