"""FedDEAP."""
