"""How "the answer is" is said in the most used languages."""

import re
from collections.abc import Iterator

_WORDS = {
    "English": ("answer ans", "", r"is\b(?:\s+(?:therefore|thus|simply|then|equal to)\b)?", ""),
    "Chinese": ("答案 答", "", r"(?:应该?|應該?|就|即)?[是为為]|等[于於]", ""),
    "Chinese choice": ("故选 故選 应选 應選", "", "", ""),
    "Hindi": ("उत्तर जवाब", "", r"हैं?|होगा", r"हैं?|होगा"),
    "Spanish": ("respuesta", "final|correcta", r"(?:es|son)\b", ""),
    "French": ("réponse reponse", "finale|correcte", r"est\b", ""),
    "Arabic": ("الإجابة الاجابة الجواب", "النهائية|النهائي|الصحيحة|الصحيح", "هي|هو", ""),
    "Bengali": ("উত্তরটি উত্তর", "", "হলো|হল|হচ্ছে|হবে", "হবে|হয়"),
    "Portuguese": ("resposta", "final|correta", r"(?:é|são)\b", ""),
    "Russian": ("ответом ответ", "", r"[-–—](?=\s)|(?:это|равен|будет|является)\b", ""),
    "Urdu": ("جواب", "", "ہے|ہیں|ہوگا", "ہے|ہیں|ہوگا"),
    "Indonesian": ("jawabannya jawaban", "akhir|akhirnya|yang benar", r"(?:adalah|ialah)\b", ""),
    "German": ("antwort lösung", "", r"(?:ist|lautet)\b", ""),
    "Japanese": ("答え 解答 正解", "", "[はが]", "です|である|となります|になります|だ"),
    "Korean": ("정답 답변 답", "", "[은는]", "입니다|이다|이에요|예요"),
    "Italian": ("risposta", "finale|corretta", r"(?:è|sono)\b", ""),
    "Turkish": ("cevap yanıt", "", "=", r"(?<=\d)['’]?[dt][ıiuü]r"),
    "Vietnamese": ("đáp_án đáp_số câu_trả_lời", "cuối cùng|đúng", r"là\b", ""),
    "Polish": ("odpowiedź", "końcowa|ostateczna", r"(?:to|brzmi)\b", ""),
    "Dutch": ("antwoord", "", r"is\b", ""),
    "Ukrainian": ("відповідь", "", r"[-–—](?=\s)|(?:це)\b", ""),
    "Persian": ("پاسخ جواب", "نهایی|صحیح", "برابر", "است"),
    "Thai": ("คำตอบ", "", "คือ", ""),
}
"""Language -> the nouns (`_` is a space), what may follow them, what joins them to the answer, what closes
the sentence."""

_MARKS = r"[\s*_`]*"
_NUMBER_NEXT = r"(?=\s+[-−$\\(\[*]*\d)"
"""`उत्तर 42 है`: the verb comes last."""


def _pattern(nouns: str, more: str, link: str, closing: str) -> str:
    noun = f"(?<![A-Za-z])(?:{nouns.replace(' ', '|').replace('_', ' ')})"
    noun += rf"(?:\s+(?:{more}))?" if more else ""
    said = rf"{noun}{_MARKS}(?:{link}|[:=：】]){_MARKS}[:：]?"
    return rf"{said}|{noun}{_NUMBER_NEXT}" if closing else said


SAID = "|".join(_pattern(*words) for words in _WORDS.values())
"""Pattern of "answer is", from the noun on. Case is to be ignored."""

IN_ALL = "一?共计?|總?共計|[总總]共|合[计計]|全部で"
"""Pattern of "in all" in front of a number, in Chinese and Japanese."""

_SAID = [
    ([noun.replace("_", " ") for noun in nouns.split()], re.compile(_pattern(nouns, *rest), re.I))
    for nouns, *rest in _WORDS.values()
]
_VERBS = "|".join(closing for *_, closing in _WORDS.values() if closing)
_CLOSING = re.compile(rf"(?:{_VERBS}|\.\s*I hope it is correct)[\s.。।۔]*\Z", re.I)


def told(lines: list[str]) -> Iterator[str]:
    """The text after the last "answer is" of each line that has it, the last line first, without the verb at
    its end."""
    text = "\n".join(lines).lower()
    said = [pattern for nouns, pattern in _SAID if any(noun in text for noun in nouns)]
    for line in reversed(lines if said else []):
        ends = [found.end() for pattern in said for found in pattern.finditer(line)]
        if ends:
            yield _CLOSING.sub("", line[max(ends) :])
