"""The made-up language of the tiny models: its words, and prompts written in it.

Separate from `tinymodel`, and standard library only, so that whoever talks to a tiny model needs
neither numpy nor a tokenizer.
"""

from __future__ import annotations

import random

_CONSONANTS = "bdfgklmnprstvz"
_VOWELS = "aeiou"
#: Few enough that the tokenizer learns each of them whole: a word is a token.
_WORD_COUNT = 512


def words() -> list[str]:
    """The whole vocabulary: the same on every machine and for every model, in random order."""
    syllables = [consonant + vowel for consonant in _CONSONANTS for vowel in _VOWELS]
    source = random.Random("words")
    found: dict[str, None] = {}
    while len(found) < _WORD_COUNT:
        found["".join(source.choices(syllables, k=source.choice((2, 3))))] = None
    return list(found)


def long_prompt(tokens: int, seed: int) -> str:
    """A prompt of about `tokens` tokens. Different seeds differ from the first word on.

    The first word is what counts: a prefix cache shares all that comes before the first
    difference.
    """
    vocabulary = words()
    body = random.Random(f"prompt {seed}").choices(vocabulary, k=max(tokens - 1, 0))
    return " ".join([vocabulary[seed % len(vocabulary)], *body])
