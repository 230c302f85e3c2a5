"""Homomorphic encryption (CKKS) of what sites send: MDH-FL on encrypted soft labels, FedAvg on encrypted weights."""
