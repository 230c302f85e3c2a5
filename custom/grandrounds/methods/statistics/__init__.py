"""What the sites' data look like, told in figures before a study begins."""
