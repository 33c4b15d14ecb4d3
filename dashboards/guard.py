"""Who may ask: a wall in front of the dashboard. A run shows source paths, commands and names of other people's work.

Three checks on every request, before any page sees it:

1. The URL begins with a random token, so another user of the machine who finds the port gets nothing.
2. The Host header names this server, so a web page whose own name is made to resolve here gets nothing (DNS rebinding).
3. An Origin header, which browsers send with whatever a script posts, is this server's own.
"""

import hmac
from collections.abc import Iterable
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


class Guard:
    """WSGI middleware. Lets through `<base path>/<token>/…` and hands the rest of the path on; the base path may have
    been taken off by a proxy already. `policy` is the Content-Security-Policy of every answer."""

    def __init__(
        self, application: "WSGIApplication", token: str, hosts: frozenset[str], base_path: str = "", policy: str = ""
    ) -> None:
        self._application = application
        self._token = token
        self._hosts = hosts
        self._base_path = base_path
        self._headers = [
            ("Content-Security-Policy", policy or "default-src 'self'"),
            ("X-Content-Type-Options", "nosniff"),
            # The token is part of the URL.
            ("Referrer-Policy", "no-referrer"),
        ]

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        host, origin = environ.get("HTTP_HOST", ""), environ.get("HTTP_ORIGIN")
        path = str(environ.get("PATH_INFO", "")).removeprefix(self._base_path)
        token, slash, rest = path.removeprefix("/").partition("/")
        if not (slash and hmac.compare_digest(token.encode(), self._token.encode())):
            return _refuse(start_response, "open the URL that `tracekit dashboard` printed, with its token")
        if _host(host) not in self._hosts:
            return _refuse(start_response, "this host name is not served; see --allow-host")
        if origin is not None and not self._is_own(origin, host):
            return _refuse(start_response, "asked by a page of another origin")
        environ["SCRIPT_NAME"] = f"{self._base_path}/{token}"
        environ["PATH_INFO"] = f"/{rest}"
        return self._application(
            environ, lambda status, headers, *error: start_response(status, headers + self._headers, *error)
        )

    def _is_own(self, origin: str, host: str) -> bool:
        """Of the same host and port as the request; behind a proxy that rewrites Host, of another allowed host."""
        return urlsplit(origin).netloc == host or _host(urlsplit(origin).netloc) in self._hosts - LOOPBACK


def _host(netloc: str) -> str:
    try:
        return urlsplit(f"//{netloc}").hostname or ""
    except ValueError:
        return ""


def _refuse(start_response: "StartResponse", why: str) -> list[bytes]:
    body = f"403: {why}\n".encode()
    start_response("403 Forbidden", [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body)))])
    return [body]
