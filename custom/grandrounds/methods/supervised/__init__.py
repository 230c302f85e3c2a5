"""Supervised training: federated averaging and local-only lower and upper bounds."""
