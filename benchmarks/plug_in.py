"""The plug-in that reads the data sets which the package does not."""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

PUBLISHED_DATA = Path(__file__).parents[1] / "examples" / "published_data"


def published_data() -> ModuleType:
    """Import the plug-in, which registers its data sets."""
    if str(PUBLISHED_DATA) not in sys.path:
        sys.path.append(str(PUBLISHED_DATA))
    return import_module(PUBLISHED_DATA.name)
