"""The parts of the page Live."""
