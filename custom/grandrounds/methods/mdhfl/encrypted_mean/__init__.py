"""Federated averaging of weights that the server adds up and cannot read."""
