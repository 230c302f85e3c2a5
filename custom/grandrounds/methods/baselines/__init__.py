"""Baselines: encrypted federated averaging and swarm learning."""
