"""Browsers, requests and pages, as the tests of the dashboard use them."""
