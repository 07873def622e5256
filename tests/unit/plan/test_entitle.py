from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from ai.backend.kvcache.errors import DeclinedError
from ai.backend.kvcache.folder.entries import Owner
from ai.backend.kvcache.plan.entitle import entitle, needs_project
from ai.backend.kvcache.plan.session import Image, Mount, Session
from ai.backend.kvcache.policy.policy import Policy, check_policy

PROJECT = "2de2b969-1d04-48a6-af16-0bc8adb3c831"
FOLDER = f"local:volume1/project:{PROJECT}/cebf99436f3746efb37451f346bdfd50"

KV = Mount("my-kv", Path("/vol/kv"), PurePosixPath("/kvcache"), True, False)
ELSEWHERE = Mount("my-kv", Path("/vol/kv"), PurePosixPath("/home/work/my-kv"), True, False)


def session(*mounts: Mount, **changes: Any) -> Session:
    said: dict[str, Any] = {
        "kernel_id": "k1",
        "mounts": mounts,
        "environ": {},
        "image": Image("stable/vllm:1", {}),
        "gpus": None,
        "service": None,
        "owner": Owner(),
        "shared_memory_bytes": None,
        "session_id": "s1",
        "user_id": "u1",
        "project_id": PROJECT,
        "resource_group": "gpus",
        **changes,
    }
    return Session(**said)


def policy(**site: Any) -> Policy:
    return check_policy({name.replace("_", "-"): value for name, value in site.items()})


ASKS = {"BACKENDAI_KVCACHE": "auto"}
REFUSES = {"BACKENDAI_KVCACHE": "off"}


class TestExplicit:
    def test_folder_at_the_mount_point(self) -> None:
        given = entitle(session(KV), policy())
        assert given is not None
        assert given.to_mount is None

    def test_folder_named(self) -> None:
        environ = {"BACKENDAI_KVCACHE_FOLDER": "my-kv"}
        assert entitle(session(ELSEWHERE, environ=environ), policy()) is not None

    def test_neither(self) -> None:
        assert entitle(session(ELSEWHERE, is_inference=True), policy()) is None

    def test_other_mount_point(self) -> None:
        assert entitle(session(KV), policy(mount_point="/kv")) is None

    def test_asks_for_the_projects_folder(self) -> None:
        given = entitle(session(environ=ASKS), policy(folder=FOLDER))
        assert given is not None
        assert given.to_mount is not None
        assert str(given.to_mount.place) == FOLDER
        assert given.to_mount.scope == f"project-{PROJECT}"

    def test_asks_and_there_is_none(self) -> None:
        with pytest.raises(DeclinedError, match=f"policy provision {PROJECT}"):
            entitle(session(environ=ASKS), policy())

    def test_refuses(self) -> None:
        assert entitle(session(KV, environ=REFUSES), policy()) is None


class TestAuto:
    def test_every_inference_session(self) -> None:
        given = entitle(session(is_inference=True), policy(mode="auto", folder=FOLDER))
        assert given is not None
        assert given.to_mount is not None

    def test_no_other_session(self) -> None:
        assert entitle(session(), policy(mode="auto", folder=FOLDER)) is None

    def test_that_refuses(self) -> None:
        asked = session(is_inference=True, environ=REFUSES)
        assert entitle(asked, policy(mode="auto", folder=FOLDER)) is None

    def test_folder_of_its_own_comes_first(self) -> None:
        given = entitle(session(KV, is_inference=True), policy(mode="auto", folder=FOLDER))
        assert given is not None
        assert given.to_mount is None

    @pytest.mark.parametrize(
        ("sharing", "scope"),
        [("project", f"project-{PROJECT}"), ("user", "user-u1"), ("session", "session-s1")],
    )
    def test_scope(self, sharing: str, scope: str) -> None:
        given = entitle(
            session(is_inference=True), policy(mode="auto", folder=FOLDER, sharing=sharing)
        )
        assert given is not None
        assert given.to_mount is not None
        assert given.to_mount.scope == scope

    def test_project_that_nobody_has_told(self) -> None:
        with pytest.raises(DeclinedError, match="sharing = project needs to know"):
            entitle(session(is_inference=True, project_id=None), policy(mode="auto", folder=FOLDER))



class TestOff:
    @pytest.mark.parametrize(
        "off",
        [
            {"mode": "off"},
            {"resource-groups": {"gpus": {"mode": "off"}}},
            {"projects": {PROJECT: {"mode": "off"}}},
        ],
    )
    def test_who_asks_is_told(self, off: dict[str, Any]) -> None:
        for asking in (session(KV), session(environ=ASKS)):
            with pytest.raises(DeclinedError, match="the administrator has switched KV cache off"):
                entitle(asking, check_policy(off))

    def test_who_does_not_ask_is_left_alone(self) -> None:
        assert entitle(session(is_inference=True), policy(mode="off")) is None


class TestProjectThatIsNotKnown:
    """Backend.AI's agents are not told; asking somebody else takes time."""

    UNKNOWN = session(project_id=None)
    SERVICE = session(project_id=None, is_inference=True)
    PER_PROJECT = check_policy({"projects": {PROJECT: {"mode": "auto", "folder": FOLDER}}})

    def test_is_needed_where_projects_have_settings(self) -> None:
        assert needs_project(self.UNKNOWN, self.PER_PROJECT)

    def test_is_needed_for_a_folder_that_would_be_mounted(self) -> None:
        assert needs_project(self.SERVICE, policy(mode="auto"))
        assert needs_project(session(project_id=None, environ=ASKS), policy())

    @pytest.mark.parametrize("mode", ["explicit", "off"])
    def test_is_not_needed_by_others(self, mode: str) -> None:
        assert not needs_project(self.UNKNOWN, policy(mode="auto"))
        assert not needs_project(self.SERVICE, policy(mode=mode))
        assert not needs_project(session(KV, project_id=None), policy(mode=mode))

    def test_is_not_needed_by_who_refuses(self) -> None:
        assert not needs_project(session(project_id=None, environ=REFUSES), self.PER_PROJECT)

    def test_is_not_asked_for_twice(self) -> None:
        assert not needs_project(session(is_inference=True), self.PER_PROJECT)

    def test_is_not_needed_to_say_that_a_wish_cannot_be_understood(self) -> None:
        strange = session(project_id=None, environ={"BACKENDAI_KVCACHE": "perhaps"})
        assert not needs_project(strange, self.PER_PROJECT)

    @pytest.mark.parametrize("sharing", ["project", "user"])
    def test_is_the_reason(self, sharing: str) -> None:
        with pytest.raises(DeclinedError, match="which project the session is of"):
            entitle(self.SERVICE, policy(mode="auto", sharing=sharing))
