"""The server of a federation: rounds, exchanges, averaging, selection, record and checkpoints."""
