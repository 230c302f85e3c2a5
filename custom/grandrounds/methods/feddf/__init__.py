"""FedDF: ensemble distillation on the server."""
