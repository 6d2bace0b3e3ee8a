"""Results that were made elsewhere: a script records them, or a CSV file holds them."""
