"""Building jobs and running them in one process or in FLARE's simulator."""
