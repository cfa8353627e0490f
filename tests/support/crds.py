"""KubeRay's own schemas in strict mode: what the API server would refuse, and what it would drop unsaid."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema

FOLDER = Path(__file__).parents[1] / "deploy" / "kuberay"
PLURAL = {"RayService": "rayservices", "RayJob": "rayjobs"}
OLDEST, NEWEST = "1.5.1", "1.7.0"


def validate_kuberay(document: dict[str, Any], version: str) -> None:
    """Raises jsonschema's ValidationError for an object that the CRD of KubeRay `version` does not describe;
    unknown keys included, wherever they are."""
    jsonschema.Draft7Validator(_schema(document["kind"], version)).validate(document)


@cache
def _schema(kind: str, version: str) -> dict[str, Any]:
    path = FOLDER / f"{PLURAL[kind]}-{version}.json.gz"
    schema: dict[str, Any] = _strict(json.loads(gzip.decompress(path.read_bytes())))
    meta = schema["properties"]["metadata"]  # the API server's own, checked beside this
    meta.pop("additionalProperties", None)
    return schema


def _strict(node: Any) -> Any:
    """OpenAPI as JSON schema, where an object with properties has no others."""
    if isinstance(node, list):
        return [_strict(each) for each in node]
    if not isinstance(node, dict):
        return node
    # Names of fields are no keywords: a field may be called `type` or `items`.
    found = {
        key: {name: _strict(each) for name, each in value.items()} if key == "properties" else _strict(value)
        for key, value in node.items()
    }
    if node.get("x-kubernetes-int-or-string"):
        found.pop("type", None)
    open_ended = node.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in node
    if node.get("type") == "object" and "properties" in node and not open_ended:
        found["additionalProperties"] = False
    return found
