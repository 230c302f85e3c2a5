"""What sites on one machine have in common, and pictures that look the same."""
