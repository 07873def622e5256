"""Reads chosen samples out of a metrics page.

The page is in Prometheus' text format 0.0.4
(https://prometheus.io/docs/instrumenting/exposition_formats/) or in OpenMetrics text 1.0
(https://prometheus.io/docs/specs/om/open_metrics_spec/), with or without the quoted names of
Prometheus 3. A sample looks alike in all of them, so nobody needs to say which one it is.

An engine's page has hundreds of samples, of which a few are wanted, every few seconds, for every
session. Lines that are not wanted are therefore skipped inside of one regular expression, before
anything is made of them. Repetitions are possessive: what they took they never give back, so that
no page, however hostile, takes more than linear time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set
from functools import lru_cache
from typing import NamedTuple

# The grammar, from small to large.
_GAP = r"[ \t]*+"
_NAME = r"[a-zA-Z_][a-zA-Z0-9_]*+"
_TEXT = r'[^"\\\n]*+(?:\\.[^"\\\n]*+)*+'
_LABEL = rf'(?:"(?!"){_TEXT}"|{_NAME}){_GAP}={_GAP}"{_TEXT}"'
_COMMA = rf"{_GAP}(?:,{_GAP}|(?=\}}))"  # The last label needs none, but may have one.
_LABELS = rf"(?:{_LABEL}{_COMMA})*+"
_NUMBER = r"[-+]?+(?:[0-9]++(?:\.[0-9]*+)?+|\.[0-9]++)(?:[eE][-+]?+[0-9]++)?+"
_VALUE = rf"(?:{_NUMBER}|[-+]?+(?i:nan|inf(?:inity)?+))"
_TIME = rf"(?:[ \t]++{_NUMBER})?+"
_EXEMPLAR = rf"(?:[ \t]++\#{_GAP}\{{{_GAP}{_LABELS}\}}{_GAP}{_VALUE}{_TIME})?+"
_END = r"[ \t\r]*+(?!.)"  # Blanks, then a line feed or the end of the page.
_TAIL = rf"{_GAP}({_VALUE}){_TIME}{_EXEMPLAR}{_END}"

# What may follow the name. Each has two groups: labels and value.
_AFTER_NAME = re.compile(rf"(){_TAIL}", re.ASCII)
_AFTER_BRACE = re.compile(rf"{_GAP}({_LABELS})\}}{_TAIL}", re.ASCII)
_AFTER_QUOTED = re.compile(rf"{_COMMA}({_LABELS})\}}{_TAIL}", re.ASCII)

_LABEL_PARTS = re.compile(rf'(?:"({_TEXT})"|({_NAME})){_GAP}={_GAP}"({_TEXT})"')
_UNQUOTED_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_ESCAPE = re.compile(r'\\[\\n"]')


class Sample(NamedTuple):
    """One line of a metrics page, without its timestamp and exemplar."""

    name: str
    """As on the page, with its suffix: ``…_total``, ``…_bucket``, ``…_sum``."""
    labels: Mapping[str, str]
    value: float
    """In the unit that the metric's name says; may be NaN or infinite."""


def read_samples(page: str, names: Set[str]) -> Iterator[Sample]:
    """Yields the samples that have one of these names, in the page's order.

    Other lines are not looked at, well-formed or not. A last line without a line feed counts:
    whether the page arrived whole is for the caller to know.

    Args:
        page: a whole metrics page.
        names: names of samples, not of families: ``x_bucket`` and ``x_sum``, not the histogram
            ``x``.

    Raises:
        ValueError: a line begins with one of the names and is not a sample. It is raised when the
            iteration comes to that line.
    """
    # Every line begins behind a line feed, to which the search can leap.
    page = "\n" + page
    for head in _heads(frozenset(names)).finditer(page):
        name, brace, quoted = head.groups()
        after = _AFTER_BRACE if brace else _AFTER_NAME if name else _AFTER_QUOTED
        tail = after.match(page, head.end())
        labels = _labels(tail[1]) if tail else None
        if tail is None or labels is None:
            raise ValueError(_not_a_sample(page, head.start() + 1))
        yield Sample(name or _unescape(quoted), labels, float(tail[2]))


@lru_cache(maxsize=32)
def _heads(names: frozenset[str]) -> re.Pattern[str]:
    """Finds where the lines with these names begin, up to their labels.

    Groups: the name; the brace behind it; or else the name where it stands quoted in the braces.
    """
    unquoted = "|".join(sorted(name for name in names if _UNQUOTED_NAME.fullmatch(name)))
    quoted = "|".join(sorted(re.escape(_escape(name)) for name in names))
    never = "(?!)"
    return re.compile(
        rf"\n{_GAP}(?:({unquoted or never})(?:{_GAP}(\{{)|(?=[ \t\r\n]|\Z))"
        rf'|\{{{_GAP}"({quoted or never})")'
    )


def _labels(text: str) -> Mapping[str, str] | None:
    """Of labels in a row, known to be well-formed. None: two have the same name."""
    parts = _LABEL_PARTS.findall(text)
    if "\\" in text:
        parts = [tuple(map(_unescape, part)) for part in parts]
    labels = {quoted or name: value for quoted, name, value in parts}
    return labels if len(labels) == len(parts) else None


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _unescape(text: str) -> str:
    """A backslash before any other character stands for itself, as prometheus_client has it."""
    return _ESCAPE.sub(lambda escape: "\n" if escape[0] == r"\n" else escape[0][1], text)


def _not_a_sample(page: str, start: int) -> str:
    number = page.count("\n", 0, start)
    beginning = page[start : start + 80].partition("\n")[0]
    return f"line {number} of the metrics page is not a sample: {beginning!r}"
