"""What tells damage from what was recorded: digests of rounds, copies of rows, and their checks."""
