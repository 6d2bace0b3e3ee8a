"""Panels: the matrices that heatmaps show, of single runs and of the rows of a comparison."""
