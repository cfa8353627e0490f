"""The DeepSpeed learner: batches, objective, optimizer steps, checkpoints, weights."""
