"""Who gets through the wall in front of the dashboard."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pytest

from tracekit.dashboards.guard import LOOPBACK, Guard

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

TOKEN = "s3cret-token"


def application(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [f"{environ['SCRIPT_NAME']}|{environ['PATH_INFO']}".encode()]


def ask(
    path: str, host: str = "127.0.0.1:8050", origin: str | None = None, base_path: str = "", allowed: str = ""
) -> tuple[str, str, dict[str, str]]:
    """Status, body and headers of a GET."""
    guard = Guard(application, TOKEN, LOOPBACK | ({allowed} if allowed else set()), base_path, "default-src 'self'")
    environ: WSGIEnvironment = {"PATH_INFO": path, "HTTP_HOST": host}
    if origin is not None:
        environ["HTTP_ORIGIN"] = origin
    seen: list[tuple[str, list[tuple[str, str]]]] = []

    def start_response(status: str, headers: list[tuple[str, str]], error: object = None) -> object:
        seen.append((status, headers))
        return lambda data: None

    body = b"".join(guard(environ, start_response))  # type: ignore[arg-type]
    return seen[0][0], body.decode(), dict(seen[0][1])


def test_the_token_is_taken_off_the_path() -> None:
    status, body, headers = ask(f"/{TOKEN}/overview")
    assert (status, body) == ("200 OK", f"/{TOKEN}|/overview")
    assert headers["Content-Security-Policy"] == "default-src 'self'"
    assert headers["Referrer-Policy"] == "no-referrer"


@pytest.mark.parametrize(
    "path", ["/", "", "/overview", "/s3cret/", f"/{TOKEN}", f"/{TOKEN}x/", f"//{TOKEN}/", "/ÿ/", "/_dash-layout"]
)
def test_without_the_token_nothing_is_served(path: str) -> None:
    assert ask(path)[0] == "403 Forbidden"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8050", "200 OK"),
        ("localhost", "200 OK"),
        ("[::1]:8050", "200 OK"),
        ("evil.example", "403 Forbidden"),
        ("127.0.0.1.evil.example:8050", "403 Forbidden"),
        ("evil.example@", "403 Forbidden"),
        ("[", "403 Forbidden"),
        ("", "403 Forbidden"),
    ],
)
def test_only_this_server_s_names_are_hosts(host: str, status: str) -> None:
    assert ask(f"/{TOKEN}/", host=host)[0] == status


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://127.0.0.1:8050", "200 OK"),
        ("http://127.0.0.1:9999", "403 Forbidden"),  # another program on this machine
        ("http://localhost:8050", "403 Forbidden"),
        ("https://evil.example", "403 Forbidden"),
        ("null", "403 Forbidden"),
        ("", "403 Forbidden"),
    ],
)
def test_only_its_own_pages_may_post(origin: str, status: str) -> None:
    assert ask(f"/{TOKEN}/", origin=origin)[0] == status


@pytest.mark.parametrize("kept", [True, False])
def test_behind_a_proxy_that_keeps_or_takes_off_the_base_path(kept: bool) -> None:
    base = "/user/me/proxy/8050"
    status, body, _ = ask(
        f"{base if kept else ''}/{TOKEN}/layers",
        host="hub.example.org",
        origin="https://hub.example.org",
        base_path=base,
        allowed="hub.example.org",
    )
    assert (status, body) == ("200 OK", f"{base}/{TOKEN}|/layers")


def test_a_proxy_may_rewrite_the_host() -> None:
    asked = {"path": f"/{TOKEN}/", "host": "127.0.0.1:8050", "origin": "https://hub.example.org"}
    assert ask(**asked)[0] == "403 Forbidden"
    assert ask(**asked, allowed="hub.example.org")[0] == "200 OK"
