"""Federated averaging on encrypted weights."""
