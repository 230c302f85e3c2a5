"""Federated averaging on encrypted updates."""
