"""A trained model for others to load: bundle and model card."""
