"""Where provisioned folders lie."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from ai.backend.kvcache.policy.place import (
    Host,
    is_provisioned,
    parse_place,
    provisioned_place,
)

HOST = Host("local", "volume1")
CHAT = "2de2b969-1d04-48a6-af16-0bc8adb3c831"
CODE = "8078b06d-0e45-4e1e-b51b-54fdc638642f"

#: Written out, since folders of earlier versions are found by it.
CHAT_SCOPE = "6c592a8d-25c9-588b-a6d5-6a89a9fbb8eb"
CHAT_FOLDER = "3b82ae61f9965bbeb60bbf15c6d7ffa5"


def test_it_never_changes() -> None:
    place = provisioned_place(HOST, CHAT)
    assert str(place) == f"local:volume1/project:{CHAT_SCOPE}/{CHAT_FOLDER}"
    assert parse_place(str(place)) == place
    assert provisioned_place(HOST, CHAT.upper()) == place


def test_each_project_has_a_quota_scope_and_a_folder_of_its_own() -> None:
    chat, code = provisioned_place(HOST, CHAT), provisioned_place(HOST, CODE)
    assert chat.vfid.split("/")[0] not in (code.vfid.split("/")[0], f"project:{CHAT}")
    assert chat.folder_id != code.folder_id


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"local:volume1/project:{CHAT_SCOPE}/{CHAT_FOLDER}", True),
        (f"vast:fast/project:{CHAT_SCOPE}/{CHAT_FOLDER}", True),
        (f"local:volume1/project:{CHAT}/{CHAT_FOLDER}", False),
        (f"local:volume1/user:{CHAT_SCOPE}/{CHAT_FOLDER}", False),
        (f"local:volume1/project:{CHAT_SCOPE}/{'0' * 32}", False),
    ],
)
def test_which_places_are_a_projects_own(text: str, expected: bool) -> None:
    assert is_provisioned(parse_place(text), CHAT) is expected
    assert is_provisioned(parse_place(text), CODE) is False


def test_path() -> None:
    place = provisioned_place(HOST, CHAT)
    assert place.folder_id == UUID(CHAT_FOLDER)
    assert place.path_in(Path("/vfroot/volume1")) == Path(
        "/vfroot/volume1/6c592a8d25c9588ba6d56a89a9fbb8eb/3b/82/ae61f9965bbeb60bbf15c6d7ffa5"
    )
