"""Ridge regression on sums that the server adds up and cannot read."""
