"""The tabs of the page Compare."""
