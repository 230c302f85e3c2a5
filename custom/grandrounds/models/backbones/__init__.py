"""Network architectures."""
