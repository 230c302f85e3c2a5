"""Mutual learning from soft labels on public images: MDH-FL, RHFL and FedMD."""
