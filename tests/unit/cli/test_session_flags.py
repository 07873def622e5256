"""What the flags mean."""

from __future__ import annotations

from typing import Any

import pytest

from ai.backend.kvcache.cli.session_flags import (
    FLAGS,
    Choice,
    Flag,
    Shape,
    choose,
    mount_to_add,
)
from ai.backend.kvcache.errors import PolicyError

ID = "586b7d5a-2983-4eb3-b94e-47eb8a151564"
OTHER_ID = "d6ba721f-5964-455f-9835-e20787a84e19"


def said(**values: str) -> dict[Flag, str]:
    """Flags by their names without ``--kv-cache-``; the first is called ``on``."""
    names = {"on": "--kv-cache", **{f.name.removeprefix("--kv-cache-"): f.name for f in FLAGS}}
    by_name = {flag.name: flag for flag in FLAGS}
    return {by_name[names[name]]: value for name, value in values.items()}


class TestEnvironment:
    @pytest.mark.parametrize("value", ["auto", "off", "AUTO", "Off"])
    def test_switch(self, value: str) -> None:
        choice = choose(said(on=value), {})
        assert choice == Choice({"BACKENDAI_KVCACHE": value.lower()}, None)

    def test_folder(self) -> None:
        assert choose(said(on="my-kv"), {}) == Choice(
            {"BACKENDAI_KVCACHE_FOLDER": "my-kv"}, "my-kv"
        )

    def test_folder_by_id(self) -> None:
        """The plugin knows names alone, and finds this one where it is mounted."""
        assert choose(said(on=ID), {}) == Choice({}, ID)

    def test_others(self) -> None:
        choice = choose(
            said(on="auto", buffer="24GiB", transport="posix", cpu="off", share="user"), {}
        )
        assert choice.environ == {
            "BACKENDAI_KVCACHE": "auto",
            "BACKENDAI_KVCACHE_BUFFER": "24GiB",
            "BACKENDAI_KVCACHE_TRANSPORT": "posix",
            "BACKENDAI_KVCACHE_CPU": "off",
            "BACKENDAI_KVCACHE_SHARE": "user",
        }

    def test_without_the_switch(self) -> None:
        """For sessions that the policy gives KV cache by itself."""
        assert choose(said(buffer="auto"), {}).environ == {"BACKENDAI_KVCACHE_BUFFER": "auto"}

    @pytest.mark.parametrize(
        ("flags", "message"),
        [
            ({"buffer": "much"}, "--kv-cache-buffer: 'much' is not a size"),
            ({"buffer": "0"}, "--kv-cache-buffer: '0' is not a size"),
            ({"transport": "rdma"}, "--kv-cache-transport = 'rdma': must be one of gds, posix"),
            ({"cpu": "lots"}, "--kv-cache-cpu = 'lots': must be \"off\" or a size"),
            ({"share": "all"}, "--kv-cache-share = 'all': must be one of session, user, project"),
            ({"on": "a/b"}, "--kv-cache 'a/b': no folder has such a name"),
            ({"on": ""}, "--kv-cache '': no folder has such a name"),
            ({"on": "x" * 65}, "no folder has such a name"),
            ({"on": "my-kv,perm=ro"}, "no folder has such a name"),
            ({"on": "off", "buffer": "1g"}, "--kv-cache off does not go with --kv-cache-buffer"),
        ],
    )
    def test_refused(self, flags: dict[str, str], message: str) -> None:
        with pytest.raises(PolicyError) as caught:
            choose(said(**flags), {})
        assert message in str(caught.value)

    def test_same_as_what_the_command_says(self) -> None:
        choice = choose(said(on="auto"), {"BACKENDAI_KVCACHE": "auto", "X": "1"})
        assert choice.environ == {"BACKENDAI_KVCACHE": "auto"}

    @pytest.mark.parametrize(
        ("flags", "variable", "flag"),
        [
            ({"on": "auto"}, "BACKENDAI_KVCACHE", "--kv-cache"),
            ({"on": "my-kv"}, "BACKENDAI_KVCACHE_FOLDER", "--kv-cache"),
            ({"buffer": "1g"}, "BACKENDAI_KVCACHE_BUFFER", "--kv-cache-buffer"),
        ],
    )
    def test_other_than_what_the_command_says(
        self, flags: dict[str, str], variable: str, flag: str
    ) -> None:
        with pytest.raises(PolicyError, match=f"{flag} and {variable}=x contradict each other"):
            choose(said(**flags), {variable: "x"})

    def test_variable_of_ours_that_cannot_be_used(self) -> None:
        with pytest.raises(PolicyError, match="BACKENDAI_KVCACHE_BUFFER: 'x' is not a size"):
            choose(said(on="auto"), {"BACKENDAI_KVCACHE_BUFFER": "x"})


class TestMount:
    def test_by_name(self) -> None:
        choice = Choice({}, "my-kv")
        assert mount_to_add(choice, {}) == "my-kv:/kvcache"
        assert mount_to_add(choice, {"model": "/models", "data": None}) == "my-kv:/kvcache"

    def test_none(self) -> None:
        assert mount_to_add(Choice({}, None), {"other": "/kvcache"}) is None

    @pytest.mark.parametrize("target", ["/kvcache", "/data", None])
    def test_mounted_by_the_user(self, target: str | None) -> None:
        """The plugin finds it by its name."""
        assert mount_to_add(Choice({}, "my-kv"), {"my-kv": target}) is None

    def test_mounted_by_the_user_by_id(self) -> None:
        assert mount_to_add(Choice({}, ID), {ID.replace("-", ""): "/kvcache"}) is None
        with pytest.raises(PolicyError, match="is mounted elsewhere; mount it at /kvcache, or say"):
            mount_to_add(Choice({}, ID), {ID: "/data"})

    def test_place_is_taken(self) -> None:
        with pytest.raises(PolicyError, match="my-kv would be mounted at /kvcache, and other is"):
            mount_to_add(Choice({}, "my-kv"), {"other": "/kvcache"})


#: Of the client's `deployment` commands, its `v2 deployment` commands, and `v2 session enqueue`.
RUNTIME = ("model_runtime_config", "environ")
V1 = Shape(("revision",), RUNTIME, False, "extra_mounts", "mount_destination")
V2 = Shape((), RUNTIME, True, "extra_mounts", "mount_destination")
SESSION = Shape((), ("environ",), False, "mounts", "mount_path")

AUTO = Choice({"BACKENDAI_KVCACHE": "auto"}, None)
FOLDER = Choice({"BACKENDAI_KVCACHE_FOLDER": "my-kv"}, "my-kv")


class TestDocuments:
    @pytest.mark.parametrize("environ", [None, {}, {"A": "1"}])
    def test_mapping(self, environ: dict[str, str] | None) -> None:
        document: dict[str, Any] = {"revision": {"model_runtime_config": {"environ": environ}}}
        described = V1.described(document)
        assert V1.environ_of(described) == (environ or {})
        V1.add(described, AUTO, None)
        assert document == {
            "revision": {
                "model_runtime_config": {
                    "environ": {**(environ or {}), "BACKENDAI_KVCACHE": "auto"}
                }
            }
        }

    def test_entries(self) -> None:
        document: dict[str, Any] = {
            "model_runtime_config": {"environ": {"entries": [{"name": "A", "value": "1"}]}}
        }
        described = V2.described(document)
        assert V2.environ_of(described) == {"A": "1"}
        V2.add(described, AUTO, None)
        assert document["model_runtime_config"]["environ"] == {
            "entries": [{"name": "A", "value": "1"}, {"name": "BACKENDAI_KVCACHE", "value": "auto"}]
        }

    def test_variable_is_not_said_twice(self) -> None:
        document: dict[str, Any] = {"environ": {"BACKENDAI_KVCACHE": "auto"}}
        SESSION.add(document, AUTO, None)
        assert document == {"environ": {"BACKENDAI_KVCACHE": "auto"}}

    @pytest.mark.parametrize(
        ("shape", "target"), [(V2, "mount_destination"), (SESSION, "mount_path")]
    )
    def test_mount(self, shape: Shape, target: str) -> None:
        other = {"vfolder_id": OTHER_ID, target: "/data"}
        document: dict[str, Any] = {"model_runtime_config": {}, shape.mounts: [other]}
        shape.add(document, FOLDER, ID)
        assert document[shape.mounts] == [other, {"vfolder_id": ID, target: "/kvcache"}]

    @pytest.mark.parametrize("mounts", [None, []])
    def test_first_mount(self, mounts: list[Any] | None) -> None:
        document: dict[str, Any] = {"mounts": mounts}
        SESSION.add(document, FOLDER, ID)
        assert document["mounts"] == [{"vfolder_id": ID, "mount_path": "/kvcache"}]

    def test_mounted_already(self) -> None:
        mount = {"vfolder_id": ID.replace("-", ""), "mount_path": "/data"}
        document: dict[str, Any] = {"mounts": [mount]}
        SESSION.add(document, FOLDER, ID)
        assert document["mounts"] == [mount]

    def test_place_is_taken(self) -> None:
        document = {"mounts": [{"vfolder_id": OTHER_ID, "mount_path": "/kvcache"}]}
        with pytest.raises(PolicyError, match=f"would be mounted at /kvcache, and {OTHER_ID} is"):
            SESSION.add(document, FOLDER, ID)

    @pytest.mark.parametrize("document", [{}, {"revision": None}, {"revision": 3}])
    def test_part_that_is_missing(self, document: dict[str, Any]) -> None:
        with pytest.raises(PolicyError, match="there is no revision in it"):
            V1.described(document)

    def test_holder_that_is_missing(self) -> None:
        """A revision that takes its runtime from a preset."""
        with pytest.raises(PolicyError, match="there is no model_runtime_config in it"):
            V2.environ_of({"model_mount_config": {}})
