"""SDFed (``method``) and FedPHA, and what both do with two prompts."""
