"""A run's model as a MONAI bundle, which runs where this package is not installed."""
