"""TorchScript as a file whose bytes follow from the network alone."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Mapping
from types import MappingProxyType

import torch

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
