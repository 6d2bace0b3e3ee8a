"""Checking a folder of images before anything is trained on it."""
