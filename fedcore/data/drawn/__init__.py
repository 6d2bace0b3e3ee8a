"""The embedded data sets: shapes that FedLens draws, and real handwritten digits."""
