"""Baselines: swarm learning."""
