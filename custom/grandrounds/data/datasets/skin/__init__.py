"""Data sets of skin lesions."""
