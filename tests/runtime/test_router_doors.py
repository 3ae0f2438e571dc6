"""Who may manage a router, and who gets which key."""

from __future__ import annotations

import asyncio
import json
import stat
from pathlib import Path

import aiohttp
import pytest
from launched import TWO, Launched
from runtime_backends import AS_ADMIN, Client, FakeBackend, with_router

from coralopt.errors import LaunchError
from coralopt.runtime.local import RemoteController
from coralopt.runtime.router import RouterConfig
from coralopt.runtime.router.doors import Doors, Keys
from coralopt.runtime.router.router import Router
from coralopt.runtime.router.run import open_doors

JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({**AS_ADMIN, **JSON}, 201),
        ({**JSON}, 401),
        ({"Authorization": "Bearer client", **JSON}, 401),
        ({"Authorization": "Bearer \udce9".encode("utf-8", "surrogateescape").decode("latin-1"), **JSON}, 401),
        ({**AS_ADMIN, "Content-Type": "text/plain"}, 415),
        ({**AS_ADMIN, **JSON, "Origin": "https://evil.example"}, 403),
        ({**AS_ADMIN, **JSON, "Origin": "null"}, 403),
        ({**AS_ADMIN, **JSON, "Host": "evil.example"}, 403),
        ({**AS_ADMIN, **JSON, "Host": "127.0.0.1.evil.example:80"}, 403),
        ({**AS_ADMIN, **JSON, "Host": "[::1].evil.example"}, 403),
        ({**AS_ADMIN, **JSON, "Host": "evil.example@localhost"}, 403),
        ({**AS_ADMIN, **JSON, "Host": "coralopt-router:8000"}, 201),
        ({**AS_ADMIN, **JSON, "Host": "[::1]:8000"}, 201),
        ({**AS_ADMIN, **JSON, "Host": "router.example:8000"}, 201),
    ],
)
def test_no_web_page_and_no_client_adds_a_backend(headers: dict[str, str], status: int) -> None:
    """What a browser can be made to send is refused, and so is a client's key."""
    other = FakeBackend("other")

    async def test(client: Client) -> None:
        server = await other.start()
        body = other.config().model_dump_json()
        async with client.session.post(f"{client.url}/router/backends", data=body, headers=headers) as answer:
            assert answer.status == status, await answer.text()
        assert ("other" in client.router.backends) == (status == 201)
        await server.close()

    with_router([FakeBackend("a")], test, api_key="client", admin_hosts=("router.example",))


def test_the_servers_key_goes_to_the_plans_servers_only() -> None:
    """A backend that was added over HTTP never sees it."""
    own, added = FakeBackend("own"), FakeBackend("added")

    async def run() -> None:
        servers = [await backend.start() for backend in (own, added)]
        router = Router(RouterConfig(backends=(own.config(),)), "secret")
        async with (
            open_doors(router, Doors(port=0, keys=Keys(admin="admin"))) as url,
            aiohttp.ClientSession() as session,
        ):
            more = added.config().model_dump()
            async with session.post(f"{url}/router/backends", json=more, headers=AS_ADMIN) as answer:
                assert answer.status == 201
            for _ in range(4):
                async with session.post(f"{url}/v1/completions", json={"model": "m", "prompt": "p"}) as answer:
                    assert answer.status == 200
        assert [headers.get("Authorization") for headers in own.headers] == ["Bearer secret"] * 2
        assert [headers.get("Authorization") for headers in added.headers] == [None] * 2
        for server in servers:
            await server.close()

    asyncio.run(run())


def test_without_an_admin_key_only_the_socket_opens(tmp_path: Path) -> None:
    """Even from this machine; the socket is its owner's alone, however long its path."""
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    socket = folder / "admin.sock"

    async def run() -> None:
        router = Router(RouterConfig())
        async with open_doors(router, Doors(port=0, admin_socket=socket)) as url, aiohttp.ClientSession() as session:
            for method, path in (("GET", "backends"), ("POST", "backends"), ("GET", "demand"), ("POST", "plan")):
                async with session.request(method, f"{url}/router/{path}") as answer:
                    assert (answer.status, "closed here" in await answer.text()) == (403, True)
            assert stat.S_IMODE(socket.stat().st_mode) == 0o600
            demand = await asyncio.to_thread(RemoteController(str(folder)).demand)
            assert demand["models"] == {}
        assert not socket.exists()
        socket.write_text("not ours")
        with pytest.raises(LaunchError, match="admin socket"):
            async with open_doors(router, Doors(port=0, admin_socket=socket)):
                pass
        assert socket.read_text() == "not ours"

    asyncio.run(run())


def test_the_admins_key_is_its_own() -> None:
    with pytest.raises(LaunchError, match="is the same as"):
        Keys("one", "one")


def test_engines_never_see_the_routers_keys(
    tmp_path: Path, vllm: Path, launched: list[Launched], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their environment is without them; the folder of the launch opens the admin door where no key is set."""
    monkeypatch.delenv("CORALOPT_ADMIN_KEY")
    vllm.write_text(vllm.read_text().replace("exec", f"env >> {tmp_path}/seen\nexec", 1))
    run = Launched(TWO, tmp_path, CORALOPT_API_KEY="client-secret", VLLM_API_KEY="servers-secret").ready()
    launched.append(run)
    seen = (tmp_path / "seen").read_text()
    assert "servers-secret" in seen
    assert "client-secret" not in seen
    status = RemoteController(str(tmp_path / "run")).status()
    assert [backend["healthy"] for backend in status["backends"]] == [True, True]
    with pytest.raises(LaunchError, match="closed here"):
        RemoteController(run.url, "client-secret").status()
    assert run.interrupt()[0] == 0
    assert not (tmp_path / "run" / "admin.sock").exists()
    assert json.loads((tmp_path / "run" / "plan.json").read_text())["format"]
