"""Measurements of speed, scale and scores; each script says what it takes."""
