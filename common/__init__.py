"""Shared by actors and the learner: configuration, types, wire format, the state of a run in Redis."""
