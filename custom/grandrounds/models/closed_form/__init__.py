"""A head in closed form: sums of features, the head that follows from them, and the temperature of its scores."""
