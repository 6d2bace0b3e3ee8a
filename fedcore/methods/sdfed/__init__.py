"""SDFed: its paper's algorithm (``method``) and the row spaces of prompts (``subspaces``)."""
