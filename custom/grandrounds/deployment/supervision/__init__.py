"""What a service does beside its program: it answers the service manager, sees that the program lives, bounds its output."""
