"""The gate of a site: decides what may leave, and under which treatment."""
