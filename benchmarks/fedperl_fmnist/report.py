"""Write this benchmark's report, as on CIFAR-10.

python benchmarks/fedperl_fmnist/report.py
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent

if __name__ == "__main__":
    script = HERE.parent / "fedperl_cifar10" / "report.py"
    sys.exit(subprocess.call([sys.executable, str(script), "--benchmark", str(HERE), *sys.argv[1:]]))
