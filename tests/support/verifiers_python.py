"""A Python that has the library `verifiers`: HORA_VERIFIERS_PYTHON, or .venv-verifiers of this checkout."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = os.environ.get("HORA_VERIFIERS_PYTHON") or str(ROOT / ".venv-verifiers/bin/python")
LACKING = f"needs `verifiers` in a Python of its own: {PYTHON} (requirements/verifiers.txt)"
needs_verifiers = pytest.mark.skipif(not Path(PYTHON).exists(), reason=LACKING)
