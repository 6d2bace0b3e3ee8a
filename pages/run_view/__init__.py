"""The tabs of the page Run."""
