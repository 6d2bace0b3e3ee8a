"""Data sets (embedded, folders, torchvision), their splits, and partitions into clients; no torch here."""
