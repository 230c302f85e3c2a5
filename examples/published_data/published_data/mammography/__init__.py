"""Data sets of mammograms."""
