"""Data sets (embedded, folders, torchvision), their splits, and partitions into clients. No torch in here."""
