"""The New page's form, part by part."""
