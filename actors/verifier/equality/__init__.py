"""Decides whether an answer equals a gold answer: `equal(gold, answer)`.

notation    Unicode mathematics, scripts and plain names as LaTeX (symbols.yaml)
typeface    removes typeface, colour and size (typeface.yaml)
texts       removes the wrapping of an answer, as "the answer is" (languages.yaml); plain numbers
claims      the value that an answer claims, if any; answers in words
units       units, compound quantities, scale words; unit_table: their sizes (units.yaml)
sizes       refuses answers that are too expensive to parse
expressions calls math-verify, with a relative tolerance; inequalities as sets of real numbers
verdict     combines all of these; gold answers that cannot be judged
misreadings gold answers that parse as something else
"""

from hora_rl.actors.verifier.equality.sizes import bounded
from hora_rl.actors.verifier.equality.texts import bare
from hora_rl.actors.verifier.equality.verdict import Verdict, equal, gold_fault, solution_fault

__all__ = ["Verdict", "bare", "bounded", "equal", "gold_fault", "solution_fault"]
