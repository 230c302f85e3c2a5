"""A rehearsal: a consortium's kits on one machine, with faults."""
