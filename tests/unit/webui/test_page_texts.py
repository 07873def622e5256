"""The page's texts, against what they speak of."""

from __future__ import annotations

import re
from pathlib import Path

from ai.backend.kvcache.metrics.advice import ADVICE_KEYS
from ai.backend.kvcache.metrics.indicators import INDICATORS
from ai.backend.kvcache.policy.settings import SETTINGS, Mode

PAGE = Path(__file__).parents[3] / "src/ai/backend/kvcache/webui/page"


def texts(language: str) -> dict[str, str]:
    """Key → text. The file is JavaScript, and this knows as much of it as the file uses."""
    source = (PAGE / "texts.js").read_text()
    body = re.search(rf"^const {language} = {{$(.*?)^}};$", source, re.MULTILINE | re.DOTALL)
    assert body is not None
    pairs = re.findall(r"^  (?:'([^']+)'|(\w+)):\s+'(.*)',$", body[1], re.MULTILINE)
    assert len(pairs) == len(re.findall(r"',$", body[1], re.MULTILINE))
    return {quoted or bare: text for quoted, bare, text in pairs}


EN, KO = texts("EN"), texts("KO")

#: In English the manager says these.
OF_THE_MANAGER = ("advice.", "meaning.")


def values_in(text: str) -> set[str]:
    return set(re.findall(r"\{(\w+)\}", text))


def test_korean_says_all_that_english_says() -> None:
    own = {key: text for key, text in KO.items() if not key.startswith(OF_THE_MANAGER)}
    assert set(own) == set(EN)
    for key, text in own.items():
        assert values_in(text) == values_in(EN[key]), key
        assert re.findall(r"`[^`]+`", text) == re.findall(r"`[^`]+`", EN[key])


def test_korean_is_korean() -> None:
    assert [key for key, text in KO.items() if not re.search("[가-힣]", text)] == []


def test_each_setting_has_its_texts() -> None:
    names = set(SETTINGS) - {"mode"}
    assert {key.removeprefix("setting.") for key in EN if key.startswith("setting.")} == names
    assert {key.removeprefix("meaning.") for key in KO if key.startswith("meaning.")} == names


def test_each_mode_has_its_texts() -> None:
    for mode in Mode:
        assert {f"mode.{mode}", f"mode.{mode}.hint"} <= set(EN)


def test_each_sentence_of_advice_is_said_in_korean() -> None:
    said = {key.removeprefix("advice.") for key in KO if key.startswith("advice.")}
    assert said == ADVICE_KEYS
    figures = {indicator.key for indicator in INDICATORS}
    assert {v for k, t in KO.items() if k.startswith("advice.") for v in values_in(t)} <= figures


def test_whatever_the_page_says_has_a_text() -> None:
    sources = [path.read_text() for path in PAGE.glob("*.js") if path.name != "lit-html.js"]
    said = {key for source in sources for key in re.findall(r"\btext\('([^']+)'", source)}
    said |= {key for source in sources for key in re.findall(r"'(tile_\w+)'", source)}
    assert len(said) > 40
    assert said <= set(EN)


def test_nothing_is_there_that_the_page_does_not_say() -> None:
    """Some are chosen by a mode, a setting or a source of tokens."""
    chosen = ("mode.", "setting.", "from.")
    source = "".join(
        path.read_text()
        for path in PAGE.glob("*.js")
        if path.name not in ("lit-html.js", "texts.js")
    )
    assert [k for k in EN if not k.startswith(chosen) and f"'{k}'" not in source] == []
