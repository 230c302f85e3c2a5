"""Federated training of medical-image classifiers between hospitals, on NVIDIA FLARE."""

__version__ = "0.1.0"
