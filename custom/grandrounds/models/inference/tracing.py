"""Networks as programs of other engines: TorchScript and ONNX."""

from __future__ import annotations

import io
import re
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from grandrounds.errors import ConfigurationError

INPUT, OUTPUT = "images", "logits"
OPSET = 18
Made = tuple[bytes, Callable[[Tensor], Any]]


def traced(form: str, network: nn.Module, inputs: Tensor, names: Sequence[str]) -> Made:
    """Record what a network in evaluation mode computes, for any number of inputs.

    Args:
        form: ``torchscript`` or ``onnx``.
        network: on the CPU.
        inputs: two of what it takes.
        names: of its outputs.

    Returns:
        The content of a file, and what computes outputs from it.

    Raises:
        ConfigurationError: if ONNX's packages are not installed.
    """
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's tracers warn about every shape that they read
        return TRACERS[form](network, inputs, names)


def require_onnx() -> None:
    """Check that the extra ``onnx`` is installed.

    Raises:
        ConfigurationError: if it is not.
    """
    try:
        import onnx  # noqa: F401 - torch writes with it
        import onnxruntime  # noqa: F401
    except ImportError as error:
        raise ConfigurationError("ONNX needs the extra onnx: pip install 'grandrounds[onnx]'") from error


def _torchscript(network: nn.Module, images: Tensor, names: Sequence[str]) -> Made:
    content = script_bytes(torch.jit.trace(network, images, check_trace=False))  # type: ignore[no-untyped-call]
    loaded: Callable[[Tensor], Any] = torch.jit.load(io.BytesIO(content))  # type: ignore[no-untyped-call]
    return content, loaded


def onnx_bytes(network: nn.Module, images: Tensor, names: Sequence[str] = (OUTPUT,)) -> bytes:
    """A network in evaluation mode as ONNX, for any number of images; it needs the package ``onnx``.

    Args:
        network: on the CPU.
        images: two of what it takes.
        names: of its outputs.
    """
    stream = io.BytesIO()
    with torch.no_grad(), torch.autocast("cpu", enabled=False), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's tracers warn about every shape that they read
        torch.onnx.export(
            network,
            (images,),
            stream,  # type: ignore[arg-type]
            input_names=[INPUT],
            output_names=[*names],
            dynamic_axes={name: {0: "batch"} for name in (INPUT, *names)},
            opset_version=OPSET,
            dynamo=False,
        )
    return stream.getvalue()


def _onnx(network: nn.Module, images: Tensor, names: Sequence[str]) -> Made:
    require_onnx()
    import onnxruntime

    content = onnx_bytes(network, images, names)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return content, lambda given: (*map(torch.from_numpy, session.run([*names], {INPUT: given.float().numpy()})),)


TRACERS: Mapping[str, Callable[[nn.Module, Tensor, Sequence[str]], Made]] = MappingProxyType(
    {"torchscript": _torchscript, "onnx": _onnx}
)


CODE_CLASS, PICKLED_CLASS = re.compile(r"__torch__(?:\.\w+)+"), re.compile(rb"c(__torch__[\w.]*)\n(\w+)\n")
_CLASS_NUMBER = re.compile(r"\.___torch_mangle_\d+")
BY_CHANCE = (".debug_pkl", "serialization_id")
"""Entries of a TorchScript archive that it is read without."""


def script_bytes(script: torch.jit.ScriptModule, beside: Mapping[str, str] = MappingProxyType({})) -> bytes:
    """A traced network as a file, in bytes that follow from the network alone.

    Args:
        script: the network.
        beside: texts by the names under which the file has them, too.
    """
    content = b""
    for _ in range(2):  # torch numbers variables by file, and only what was written here has a file for each class
        stream = io.BytesIO()
        torch.jit.save(script, stream, dict(beside))
        content = _canonical(stream.getvalue())
        script = torch.jit.load(io.BytesIO(content))  # type: ignore[no-untyped-call]
    return content


def _canonical(archive: bytes) -> bytes:
    """TorchScript with classes numbered from the outermost one inwards, and without the paths of source files.

    Torch numbers the classes of all networks that a process has traced.
    """
    with zipfile.ZipFile(io.BytesIO(archive)) as given:
        entries = {name: given.read(name) for name in given.namelist() if not name.endswith(BY_CHANCE)}
    code, classes = {name for name in entries if name.endswith(".py")}, {}
    for name in sorted(code):
        module = name[name.index("/code/") + len("/code/") : -len(".py")].replace("/", ".")
        for text in re.split(r"(?m)^(?=class )", entries[name].decode())[1:]:
            classes[f"{module}.{text[len('class ') : text.index('(')]}"] = text
    outermost = PICKLED_CLASS.search(entries["archive/data.pkl"])
    order: dict[str, str] = {}

    def number(name: str) -> None:
        module, _, last = name.rpartition(".")
        order[name] = f"{_CLASS_NUMBER.sub('', module)}.___torch_mangle_{len(order)}.{last}"
        for other in CODE_CLASS.findall(classes[name]):
            if other in classes and other not in order:
                number(other)

    if outermost:
        number(b".".join(outermost.groups()).decode())
    kept = {
        name: PICKLED_CLASS.sub(lambda match: _renamed(match, order), content) if name.endswith(".pkl") else content
        for name, content in entries.items()
        if name not in code
    }
    for name, new in order.items():
        text = CODE_CLASS.sub(lambda match: order.get(match[0], match[0]), classes[name])
        kept[f"archive/code/{new.rpartition('.')[0].replace('.', '/')}.py"] = text.encode()
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as target:
        for name, content in kept.items():
            target.writestr(zipfile.ZipInfo(name), content)
    return written.getvalue()


def _renamed(match: re.Match[bytes], order: Mapping[str, str]) -> bytes:
    new = order.get(b".".join(match.groups()).decode())
    return b"c%b\n%b\n" % tuple(part.encode() for part in new.rsplit(".", 1)) if new else match[0]
