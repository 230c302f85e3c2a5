"""Lets the tests of this folder import the small hospitals beside them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
