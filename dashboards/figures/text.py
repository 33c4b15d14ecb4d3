"""Numbers as people read them, and names of strangers made harmless for plotly's markup."""

import html
import unicodedata
from functools import lru_cache

_NS = [(1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1, "ns")]
_COUNTS = [(1e9, " G"), (1e6, " M"), (1e3, " k")]


def time_unit(ns: float) -> tuple[float, str]:
    """The unit in which so many nanoseconds read well: its nanoseconds and its name."""
    for step in _NS:
        if abs(ns) >= step[0]:
            return step
    return _NS[-1]


def duration(ns: float) -> str:
    """Nanoseconds with three significant digits in a unit that fits: `1.23 ms`."""
    size, unit = time_unit(ns)
    return f"{significant(ns / size)} {unit}"


def long_duration(ns: float) -> str:
    """Nanoseconds of a whole run: `1 h 02 min`, `3 min 20 s`, `12.3 s`."""
    seconds = ns / 1e9
    if seconds < 60:
        return duration(ns)
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def number(count: float) -> str:
    """A count: whole below ten thousand, else three significant digits: `9,812`, `12.3 M`."""
    if abs(count) < 10_000:
        return f"{count:,.0f}".replace("-", "−") if count == int(count) else significant(count)
    size, unit = next(step for step in _COUNTS if abs(count) >= step[0])
    return f"{significant(count / size)}{unit}"


def percent(share: float) -> str:
    """A share of 1: `12.3 %`; small ones are not rounded to nothing."""
    if 0 < abs(share) < 0.001:
        return "< 0.1 %" if share > 0 else "> −0.1 %"
    return f"{share * 100:.1f} %".replace("-", "−")


def significant(value: float) -> str:
    """Three significant digits, a comma at the thousands, a true minus sign."""
    digits = max(0, 3 - len(str(int(abs(value)))))
    text = f"{value:.3g}" if 0 < abs(value) < 1 else f"{value:,.{digits if value else 0}f}"
    return text.replace("-", "−")


def _visible(letter: str) -> str:
    if letter == "\n":
        return "␊"
    return "�" if unicodedata.category(letter)[0] == "C" else letter


@lru_cache(maxsize=1 << 14)
def one_line(name: str, length: int = 80) -> str:
    """A name with its control characters made visible and its middle cut out when it is longer than `length`."""
    shown = "".join(map(_visible, name))
    if len(shown) <= length:
        return shown
    head = (length - 1) // 2
    return f"{shown[:head]}…{shown[len(shown) - (length - 1 - head) :]}"


def sentence(words: str) -> str:
    """What tracekit itself says, whole unless the names in it are out of all measure."""
    return one_line(words, 2000)


def label(name: str, length: int = 80) -> str:
    """A name for plotly, which would take `<b>`, `<a href=…>` and `&…;` in labels and hover texts for markup."""
    return html.escape(one_line(name, length), quote=False)
