"""Plug-ins and tools that are not part of the package."""
