"""The tabs of the page Run that hold more than a table."""
