"""Decides whether an answer equals a gold answer: `equal(gold, answer)`.

notation    Unicode mathematics, scripts and plain names as LaTeX (symbols.yaml)
typeface    removes typeface, colour and size (typeface.yaml)
texts       removes the wrapping of an answer, as "the answer is" (languages.yaml)
numerals    plain numbers, thousands, other bases
words       answers in words
claims      the value that an answer claims, if any
units       units, compound quantities, scale words; unit_table: their sizes (units.yaml)
sizes       refuses answers that are too expensive to parse
expressions calls math-verify, with nearness (relative tolerance); inequalities as sets of real numbers
verdict     combines all of these
gold        gold answers that cannot be judged; misreadings: those that parse as something else
"""

from hora_rl.actors.verifier.equality.gold import gold_fault, solution_fault
from hora_rl.actors.verifier.equality.sizes import bounded
from hora_rl.actors.verifier.equality.texts import bare
from hora_rl.actors.verifier.equality.verdict import Verdict, equal

__all__ = ["Verdict", "bare", "bounded", "equal", "gold_fault", "solution_fault"]
