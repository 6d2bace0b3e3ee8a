"""The guard in front of the dashboard: it decides for every request whether it is answered."""
