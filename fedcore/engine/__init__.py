"""The engine: the round loop as a stream of events, batched local training, evaluation, checkpoints."""
