"""What both actors and the learner need: configuration, types, the wire, what a run keeps in Redis."""
