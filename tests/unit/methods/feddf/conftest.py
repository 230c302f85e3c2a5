"""Lets tests import the site in memory of the tests of mutual learning."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "mutual"))
