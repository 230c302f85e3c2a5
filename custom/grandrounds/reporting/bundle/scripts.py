"""The modules of this package that a bundle needs to read images, copied into its folder ``scripts``."""

from __future__ import annotations

import re
from pathlib import Path

import grandrounds
from grandrounds.files import write_bytes

_IMPORT = re.compile(r"from grandrounds(?:\.\w+)*\.(\w+) import")
_MODULE = re.compile(r"from grandrounds\.([\w.]+) import")
_FIRST = "reporting.bundle.images"


def write_scripts(folder: Path) -> None:
    """Write ``images.py`` and each module that it imports, side by side, as a package."""
    root, waiting, known = Path(grandrounds.__file__).parent, [_FIRST], {_FIRST}
    origin = f"# Of grandrounds {grandrounds.__version__}, licence Apache-2.0.\n"
    write_bytes(folder / "__init__.py", origin.encode())
    while waiting:
        source = root.joinpath(*waiting.pop().split(".")).with_suffix(".py")
        text = source.read_text(encoding="utf-8")
        found = set(_MODULE.findall(text)) - known
        known |= found
        waiting += found
        write_bytes(folder / source.name, (origin + _IMPORT.sub(r"from .\1 import", text)).encode())
