"""Naive float64 implementations of the papers, to hold the batched ones against."""
