"""Ray Serve deployments: generators, verifier, environments, coordinator."""
