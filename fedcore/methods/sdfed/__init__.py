"""SDFed."""
