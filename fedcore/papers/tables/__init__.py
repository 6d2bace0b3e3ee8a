"""The papers' tables as they are printed, what fills each of their cells here, and what is missing for it."""
