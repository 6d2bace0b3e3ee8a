"""What the engine reports and the store keeps: events, codes, and how recorded values are shown."""
