"""How the clients of a round are trained: cohorts, chunks and devices, optimisers, local state, messages."""
