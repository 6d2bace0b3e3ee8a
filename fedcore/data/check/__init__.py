"""Check a data set before anything is trained on it."""
