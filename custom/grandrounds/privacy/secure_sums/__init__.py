"""Sums of sites' numbers that nobody can open but as a whole (Bonawitz et al., CCS 2017, figure 4)."""
