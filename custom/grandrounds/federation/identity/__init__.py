"""Who is connected: one kit at one place."""
