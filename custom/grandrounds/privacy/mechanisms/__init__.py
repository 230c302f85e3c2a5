"""Privacy mechanisms: clipping, noise, coarsening and DP-SGD."""
