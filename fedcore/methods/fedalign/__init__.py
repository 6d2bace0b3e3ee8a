"""FedAlign."""
