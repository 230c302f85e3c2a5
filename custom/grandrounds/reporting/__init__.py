"""Reports of runs: one page and a folder of figures and tables, and models for others to load."""
