"""Heartbeats of replicas that were replaced long ago are let go of; what views show stays."""

import json

from actors.coordinator.history_writer import FORGOTTEN_S, long_gone


def test_a_replica_that_is_long_gone_is_forgotten_and_a_learner_is_not() -> None:
    now = 10 * FORGOTTEN_S
    seen = {
        b"generator/new": now - 1,
        b"generator/old": now - FORGOTTEN_S - 1,
        b"environment/old": 0.0,
        b"verifier/silent": now - FORGOTTEN_S + 1,
        b"learner/0": 0.0,
        b"coordinator/old": 0.0,
    }
    parts = {name: json.dumps({"seen": at}).encode() for name, at in seen.items()}
    assert long_gone(parts, now) == [b"generator/old", b"environment/old"]
