"""FedPerl's proof of concept on Fashion-MNIST: the same runs as on CIFAR-10, with the configuration of this folder.

python benchmarks/fedperl_fmnist/run.py --root FASHION_MNIST_FOLDER --workspace runs/fedperl_fmnist --workers 2
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent

if __name__ == "__main__":
    script = HERE.parent / "fedperl_cifar10" / "run.py"
    defaults = ["--benchmark", str(HERE), "--workspace", "runs/fedperl_fmnist"]
    sys.exit(subprocess.call([sys.executable, str(script), *defaults, *sys.argv[1:]]))
