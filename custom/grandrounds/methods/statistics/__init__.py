"""Summary statistics of the sites' data before a study begins."""
