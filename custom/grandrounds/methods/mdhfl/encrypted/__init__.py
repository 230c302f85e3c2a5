"""Mutual learning in which the server adds up rows that it cannot read."""
