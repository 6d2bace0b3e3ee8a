"""Records that the engine makes and the store holds: events, codes, and how recorded values are shown."""
