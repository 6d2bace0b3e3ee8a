"""The papers' tables as printed, with our values or the runs that are missing for them."""
