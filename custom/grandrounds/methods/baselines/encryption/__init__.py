"""Homomorphic encryption (CKKS) of what sites send."""
