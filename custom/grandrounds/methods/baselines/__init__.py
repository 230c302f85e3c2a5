"""Baselines: MDH-FL and federated averaging on encrypted values, and swarm learning."""
