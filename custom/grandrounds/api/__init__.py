"""The public Python API; import its names from ``grandrounds``."""
