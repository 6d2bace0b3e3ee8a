"""The values that the four papers publish, the experiments that reproduce them, and our own values."""
