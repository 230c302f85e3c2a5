"""Figures of runs and of their comparison."""
