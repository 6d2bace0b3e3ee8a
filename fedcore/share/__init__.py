"""Results that others can check: bundles of predictions and splits, their check, and training again."""
