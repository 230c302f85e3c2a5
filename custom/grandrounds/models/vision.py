"""Import torchvision, also where its compiled operators do not fit the installed torch.

A torchvision built for CUDA cannot load its operators beside a CPU-only torch, and then refuses to be imported although
its networks need none of them. Here the operators that the import asks for are declared (never implemented) and the
import is repeated. On a sound installation nothing is touched.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import torch

MISSING_OPERATOR = "operator torchvision::nms does not exist"
NMS_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def import_torchvision() -> ModuleType:
    """Import torchvision.

    Returns:
        The module ``torchvision``. Where its operators were missing they stay missing: calling one raises
        ``NotImplementedError``. Networks and transforms work.

    Raises:
        ImportError: if torchvision is not installed.
        RuntimeError: if its import fails for another reason than its missing operators.
    """
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if MISSING_OPERATOR not in str(error):
            raise
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    for operator in ("nms", "qnms"):
        torch.library.define(f"torchvision::{operator}", NMS_SIGNATURE)
    return importlib.import_module("torchvision")
