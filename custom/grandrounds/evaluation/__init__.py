"""Metrics, paired statistics and tables."""
