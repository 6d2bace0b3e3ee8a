"""Files of a comparison: tidy tables as CSV and JSON, and LaTeX."""
