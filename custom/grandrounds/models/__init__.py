"""The registry of backbones."""
