"""Scores of findings: each finding is a question of its own, answered yes or no."""
