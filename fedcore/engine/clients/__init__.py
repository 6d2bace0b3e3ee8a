"""The training of a round's clients: cohorts, chunks and devices, optimisers, local state, messages."""
