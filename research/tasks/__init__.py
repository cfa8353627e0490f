"""Tasks that the demo's tiny model can learn in seconds, with the success of every prompt known exactly."""
