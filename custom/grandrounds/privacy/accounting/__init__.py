"""Privacy accounting: what releases cost together, in (epsilon, delta)."""
