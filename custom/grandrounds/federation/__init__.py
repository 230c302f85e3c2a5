"""The seam to NVIDIA FLARE: rounds on the server, tasks at the sites, and what travels between them."""
