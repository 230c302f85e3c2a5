"""Startup kits: reading, checking, provisioning and the overlay with a site's policy."""
