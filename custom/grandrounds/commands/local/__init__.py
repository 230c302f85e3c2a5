"""What needs many runs or a federation, on this machine."""
