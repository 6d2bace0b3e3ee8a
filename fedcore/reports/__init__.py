"""Reports of a comparison: one HTML file that needs no server, and a folder for a paper."""
