"""Forecasts of each rule on prompts with known counts: `allocator.plan`."""
