"""Looking at a federation while it runs: the state of a kit or a run, and a page that shows it."""
