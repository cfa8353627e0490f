"""Convertible units, scale words, and products of units. No parsing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

_SCALE_WORDS = {
    100: "hundred 百 백 सौ",
    1000: "thousand 千 천 mil mille mila tausend тысяча тысячи тысяч тыс हज़ार हजार হাজার ہزار هزار ألف آلاف"
    " ribu nghìn ngàn tysiąc tysiące tysięcy",
    10**4: "万 萬 만",
    10**5: "lakh लाख লাখ لاکھ",
    10**6: "million millón millones milhão milhões millionen миллион миллиона миллионов млн مليون ملايين"
    " juta triệu milyon milioni miliony milionów",
    10**7: "crore करोड़ কোটি کروڑ",
    10**8: "亿 億 억",
    10**9: "billion milliard milliards milliarde milliarden миллиард миллиарда миллиардов млрд مليار",
    10**12: "trillion 兆",
    12: "dozen docena docenas dúzia dúzias douzaine douzaines dutzend дюжина дюжины дюжин दर्जन",
}
SCALES = {word: size for size, words in _SCALE_WORDS.items() for word in words.split()}
"""Words that multiply the number and are never dropped."""

_MORE = {
    "Spanish": "o u y e ni no sin menos más mitad mitades medio medios tercio tercios cuarto cuartos quinto",
    "Portuguese": "ou não mais metade meio meios terço terços quarto décimo décimos",
    "French": "et pas moins plus demi demis moitié tiers cinquième cinquièmes dixième dixièmes",
    "German": "oder und nicht kein minus mehr weniger halb halbe hälfte drittel viertel fünftel zehntel",
    "Russian": "или и не ни минус плюс больше меньше более менее половина половины полтора треть трети"
    " четверть четверти четвёртых пятых десятых сотых",
    "Arabic": "أو او و لا ليس نصف ثلث ربع أقل أكثر ناقص زائد",
    "Hindi": "या और नहीं आधा कम अधिक ज़्यादा",
    "Bengali": "বা এবং অথবা না আধা কম বেশি",
    "Urdu": "یا اور نہیں آدھا کم زیادہ",
    "Korean": "반 또는 이상 이하 미만 초과",
}
MORE_WORDS = frozenset(word for words in _MORE.values() for word in words.split())
"""Words after a number that are more than a unit: alternatives, comparisons, parts."""

MORE_IN = re.compile(
    "半|分之|以上|以下|以内|未満|未满|左右|より|または|および|ない|[或和与不非負负超余餘又至第多减加乘除]"
)
"""The same in Chinese and Japanese, anywhere in what follows a number."""

_FOOT, _POUND, _GALLON = Fraction("0.3048"), Fraction("0.45359237"), Fraction("0.003785411784")

_RADIAN = Fraction("57.2957795130823208767981548141051703324054724665643215491602438612")
"""Degrees per radian, to more digits than are compared."""

# base dimension -> names of a unit -> its size in the dimension's own unit
_UNITS: dict[str, dict[str, Fraction | int]] = {
    "length": {
        "mm millimeter millimetre мм 毫米": Fraction(1, 1000),
        "cm centimeter centimetre centímetro centimètre zentimeter см 厘米 公分 センチ": Fraction(1, 100),
        "dm decimeter decimetre": Fraction(1, 10),
        "m meter metre metro mètre м 米 メートル 미터": 1,
        "km kilometer kilometre kilómetro kilomètre км 千米 公里 キロメートル": 1000,
        "in inch inche": _FOOT / 12,
        "ft foot feet": _FOOT,
        "yd yard": 3 * _FOOT,
        "mi mile": 5280 * _FOOT,
    },
    "time": {
        "ms millisecond": Fraction(1, 1000),
        "s sec second segundo seconde sekunden сек 秒 초": 1,
        "min minute minuto minuten мин минут минуты 分钟 분": 60,
        "h hr hour hora heure stunde stunden час часа часов 小时 小時 時間 시간": 3600,
        "day día dia jour tage дня дней день 天 日間": 86400,
        "week": 7 * 86400,
    },
    "calendar": {"month": 1, "yr year": 12, "decade": 120, "century centurie": 1200},
    "mass": {
        "mg milligram": Fraction(1, 1000),
        "g gram gramo gramme гр 克 グラム": 1,
        "kg kilogram kilogramo kilogramme кг 千克 公斤 キログラム": 1000,
        "oz ounce": 1000 * _POUND / 16,
        "lb pound": 1000 * _POUND,
    },
    "angle": {
        "arcminute": Fraction(1, 60),
        "degree deg grado grau градус градуса градусов 度": 1,
        "radian rad": _RADIAN,
    },
    "percent": {"% percent pct prozent процент процента процентов प्रतिशत パーセント 퍼센트": 1},
    "dollar": {
        "cent ¢ penny pennie": Fraction(1, 100),
        "dollar usd $ us$ dólar dólare доллар доллара долларов 美元 ドル 달러": 1,
    },
    "euro": {"euro € eur евро 欧元 ユーロ 유로": 1},
    "sterling": {"£ gbp 英镑": 1},
    "yuan or yen": {"¥ 元 円 圆 圓 块 块钱 人民币 日元 yuan yen rmb cny jpy": 1},  # `¥` is both
    "rupee": {"₹ rupee rs inr रु रू रुपये रुपए रुपया روپے টাকা ৳": 1},
    "rouble": {"₽ rouble ruble rub руб рубль рубля рублей": 1},
    "won": {"₩ krw 원": 1},
    "real": {"r$ brl reai": 1},
    "zloty": {"zł pln złoty złote złotych": 1},
    "crown": {"kr sek nok dkk kronor kroner": 1},
    "franc": {"chf fr sfr franken": 1},
    "lira": {"tl try ₺ lira lirası": 1},
    "rupiah": {"rp idr rupiah": 1},
    "ringgit": {"rm myr ringgit": 1},
    "koruna": {"kč czk korun koruna": 1},
}
_VOLUMES: dict[str, Fraction | int] = {
    "ml milliliter millilitre мл 毫升": Fraction(1, 10**6),
    "l liter litre litro л 升 リットル": Fraction(1, 1000),
    "cup": _GALLON / 16,
    "pint": _GALLON / 8,
    "quart": _GALLON / 4,
    "gal gallon": _GALLON,
}


@dataclass(frozen=True)
class Unit:
    """A unit. `dimensions` is ordered (name, exponent) pairs; None for unknown words."""

    factor: Fraction
    dimensions: tuple[tuple[str, int], ...] | None

    def power(self, exponent: int) -> Unit:
        if self.dimensions is None:
            return self
        return Unit(self.factor**exponent, tuple((name, n * exponent) for name, n in self.dimensions))

    def times(self, other: Unit) -> Unit:
        if self.dimensions is None or other.dimensions is None:
            return UNKNOWN
        exponents = dict(self.dimensions)
        for name, n in other.dimensions:
            exponents[name] = exponents.get(name, 0) + n
        return Unit(self.factor * other.factor, tuple(sorted((k, n) for k, n in exponents.items() if n)))


UNKNOWN = Unit(Fraction(1), None)
ONE = Unit(Fraction(1), ())


CURRENCIES = (
    "aed ars aud bdt bgn bhd bob brl cad chf clp cny cop crc czk dkk dzd egp etb eur gbp ghs hkd huf"
    " idr ils inr iqd irr isk jod jpy kes krw kwd kzt lbp lkr mad mxn myr ngn nok npr nzd omr pen php"
    " pkr pln qar rmb ron rsd rub sar sek sgd thb tnd try twd tzs uah ugx usd uyu uzs ves vnd zar"
)
"""Codes of currencies, most of them of ISO 4217."""


def _table() -> dict[str, Unit]:
    table: dict[str, Unit] = {}
    for dimension, units in _UNITS.items():
        for names, size in units.items():
            table |= dict.fromkeys(names.split(), Unit(Fraction(size), ((dimension, 1),)))
    for names, size in _VOLUMES.items():
        table |= dict.fromkeys(names.split(), Unit(Fraction(size), (("length", 3),)))
    codes = {code: Unit(Fraction(1), ((code, 1),)) for code in CURRENCIES.split()}
    table = codes | table
    mile, metre = table["mile"], table["km"]
    table["mph"] = mile.times(table["hour"].power(-1))
    table |= dict.fromkeys(("kmph", "kmh", "kph"), metre.times(table["hour"].power(-1)))
    return table


TABLE = _table()
PERCENT = TABLE["percent"]


SIGNS = "$¢-¥\u058f\u060b\u09f2\u09f3\u0e3f\u17db\u20a0-\u20c0\ufdfc"
"""Currency signs of all languages, for a regular expression's class."""
_SIGN = re.compile(rf"[a-z]{{0,3}}[{SIGNS}]")


def unit_named(word: str) -> Unit | None:
    """The unit of a word, singular or plural, in any case; None if unknown. A currency sign that is in no
    table is a unit by itself."""
    word = word.lower().rstrip(".")
    singular = word.removesuffix("s") if len(word) > 2 else word
    known = TABLE.get(word) or TABLE.get(singular)
    return known or (Unit(Fraction(1), ((word, 1),)) if _SIGN.fullmatch(word) else None)


def without_scales(word: str) -> list[str]:
    """The word as scales and the rest, as written in Chinese: `万元` -> `万`, `元`. `千克` is a unit."""
    scales = []
    while len(word) > 1 and word not in TABLE and word[0] in SCALES:
        scales.append(word[0])
        word = word[1:]
    return [*scales, word]
