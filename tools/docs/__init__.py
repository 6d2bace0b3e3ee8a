"""Writers of the parts of docs/ that follow from the code."""
