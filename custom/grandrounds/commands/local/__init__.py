"""Federations on this machine."""
