"""SDFed (``method``), and what it and FedPHA do with two prompts."""
