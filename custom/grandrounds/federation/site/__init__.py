"""A site of a federation: tasks, data, training, scoring and state on disk."""
