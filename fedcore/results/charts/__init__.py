"""Plotly figures: numbers in, figures out."""
