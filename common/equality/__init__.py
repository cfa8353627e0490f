"""Decides whether an answer equals a gold answer.

notation    Unicode mathematics, scripts and plain names as LaTeX
typeface    removes typeface, colour and size
texts       removes the wrapping of an answer
numerals    plain numbers, thousands, other bases
words       answers in words
solutions   gold answers within other text
misreadings gold answers that parse as something else
statements  the value that an answer claims, if any
units       units, compound quantities, scale words (tables: unit_table)
sizes       refuses answers that are too expensive to parse
expressions calls math-verify, with nearness (relative tolerance) and regions (inequalities)
verdict     combines all modules
"""

from hora_rl.common.equality.sizes import bounded
from hora_rl.common.equality.texts import bare
from hora_rl.common.equality.verdict import gold_fault, math_equal, quick_verdict

__all__ = ["bare", "bounded", "gold_fault", "math_equal", "quick_verdict"]
