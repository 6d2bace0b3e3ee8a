"""The guard in front of the dashboard, which decides whether a request is answered."""
