"""Federated ridge regression: a head in closed form on the features of a frozen network."""
