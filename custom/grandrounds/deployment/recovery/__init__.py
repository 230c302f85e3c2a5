"""A way back from what a participant has lost."""
