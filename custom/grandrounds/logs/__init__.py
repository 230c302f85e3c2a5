"""Structured logs: one form of line for server and sites."""
