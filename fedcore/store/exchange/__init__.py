"""Results come and go: experiments as JSON files, CSV files, and other databases."""
