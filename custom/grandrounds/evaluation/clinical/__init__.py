"""What a clinic asks of a model: one positive group, an operating point, calibration, net benefit, subgroups."""
