"""Prompts are shared wherever a prompt has two completions, however little that saves."""

from hora_rl.learner.prefixes import Sharing

ALWAYS = Sharing(even=1e9)
