"""Published data sets and synthetic images: one reader per data set."""
