"""The baselines that learn prompts, one file each."""
