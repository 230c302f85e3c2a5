"""Networks without gradients: one object through which all predictions go, and the forms in which they are computed."""
