"""Swarm learning with FLARE's own components."""
