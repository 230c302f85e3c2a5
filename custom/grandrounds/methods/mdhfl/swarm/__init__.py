"""Swarm learning: sites average their weights among themselves, by FLARE's own parts."""
