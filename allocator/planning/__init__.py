"""What each allocation rule would do on prompts whose counts of successes are known: `allocator.plan`."""
