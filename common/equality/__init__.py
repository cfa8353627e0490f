"""Whether an answer equals a gold answer.

notation    Unicode mathematics and plain names as LaTeX
texts       what people put around an answer
numerals    plain numbers, thousands, other bases
words       answers in words
solutions   gold answers within other text
statements  what an answer claims, and whether it claims a value at all
units       units, compound quantities, scale words (tables: unit_table)
sizes       what is too much work to be parsed
expressions the judgement of math-verify, with nearness (relative tolerance) and regions (inequalities)
verdict     the order of all this
"""

from hora_rl.common.equality.sizes import bounded
from hora_rl.common.equality.texts import bare
from hora_rl.common.equality.verdict import gold_fault, math_equal, quick_verdict

__all__ = ["bare", "bounded", "gold_fault", "math_equal", "quick_verdict"]
