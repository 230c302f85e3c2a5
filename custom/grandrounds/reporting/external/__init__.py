"""A place that never took part in a run: what is asked of it, what was found there, and its section of a report."""
