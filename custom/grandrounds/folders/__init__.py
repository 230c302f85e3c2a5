"""Writing folders as a whole."""
