"""Dividing one data set between simulated hospitals."""
