"""HORA's modules in a Python that has no packages, and so nothing that knows where `hora_rl` is."""

from hora_rl.common.load import ROOT

SETUP = f"""\
import sys, types
ours = sys.modules["hora_rl"] = types.ModuleType("hora_rl")
ours.__path__ = [{str(ROOT)!r}]
"""
"""The first lines of such a program."""
