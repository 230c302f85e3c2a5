"""Commands that make data ready for a run."""
