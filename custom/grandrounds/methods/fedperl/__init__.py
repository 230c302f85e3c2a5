"""FedPerl: semi-supervised federated peer learning with peer anonymisation."""
