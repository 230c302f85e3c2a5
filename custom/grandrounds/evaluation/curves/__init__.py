"""Curves over a threshold, their areas, and the binned counts from which others can draw them."""
