from __future__ import annotations

import re
from pathlib import Path

import pytest

from ai.backend.kvcache.policy.describe import DESCRIPTIONS, Description
from ai.backend.kvcache.policy.settings import SETTINGS, Settings, check_level, settings_of

DOCUMENT = (Path(__file__).parents[3] / "docs/policy.md").read_text()


def test_all_settings_in_their_order() -> None:
    assert [description.name for description in DESCRIPTIONS] == list(SETTINGS)


@pytest.mark.parametrize("description", DESCRIPTIONS, ids=lambda d: str(d.name))
class TestOne:
    def test_its_default_may_be_said_and_changes_nothing(self, description: Description) -> None:
        if description.default is not None:
            said = check_level({description.name: description.default})
            assert settings_of(said) == Settings()

    def test_each_of_its_choices_may_be_said(self, description: Description) -> None:
        for choice in description.choices or ():
            check_level({description.name: choice})
        if description.choices is not None:
            assert description.default in description.choices

    def test_its_default_is_that_of_the_document(self, description: Description) -> None:
        line = re.search(rf"^\| `{description.name}` \| (.*?) ?\|", DOCUMENT, re.MULTILINE)
        assert line
        default = description.default
        assert line[1] == ("" if default is None else f"`{default}`")
