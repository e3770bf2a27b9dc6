"""What may reach the page: its own requests, of its own size, from its own address. Everything else ends here.

Gradio serves far more than this page uses: uploads, proxies, other people's addresses, editors. So what passes is
listed, and what is not on the list does not exist. Plain ASGI: nothing here knows Gradio.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LARGEST_BODY = 64 * 2**10  # bytes; a prompt of a thousand characters is far below that
MOST_CALLS = 64  # at a time; an open page holds two
PATIENCE = 10.0  # seconds that a body may take
_FILE = "/gradio_api/file="
_READS = re.compile(
    r"/|/config|/theme\.css|/favicon\.ico|/(assets|static|svelte)/.+"
    r"|/gradio_api/(app_id|startup-events|queue/data|heartbeat/\w{1,64})"
)
_WRITES = re.compile(r"/gradio_api/(run/predict|queue/join)")


class Fence:
    """ASGI middleware in front of Gradio; hosts were checked before.

    Args:
        app: what is behind it.
        folder: the only one that files are served from, by their path.
    """

    def __init__(self, app: App, folder: Path) -> None:
        self.app, self.folder, self._calls = app, folder.resolve(), 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
        elif refused := self._refused(scope):
            await _reply(send, *refused)
        else:
            self._calls += 1
            try:
                await self._pass(scope, receive, send)
            finally:
                self._calls -= 1

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the body first, so that none that is too large or too slow gets any further."""
        if scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        try:
            async with asyncio.timeout(PATIENCE):
                body = await _body(receive)
        except TimeoutError:
            await _reply(send, 408, "The request took too long.")
            return
        if body is None:
            await _reply(send, *_TOO_LARGE)
        else:
            await self.app(scope, _again(body, receive), send)

    def _refused(self, scope: Scope) -> tuple[int, str] | None:
        """Status and reason, if the request must not pass."""
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        if not self._exists(scope["method"], scope["path"]):
            return 404, "There is nothing here."
        if _is_foreign(headers, scope["path"]):
            return 403, "Only the page itself may ask for this."
        if scope["method"] == "POST" and dict(headers).get("content-type", "").split(";")[0] != "application/json":
            return 415, "The page speaks JSON."
        if _announces_too_much(scope["method"], dict(headers)):
            return _TOO_LARGE
        return (503, "Too many requests at a time; try again.") if self._calls >= MOST_CALLS else None

    def _exists(self, method: str, path: str) -> bool:
        if method == "POST":
            return _WRITES.fullmatch(path) is not None
        if method not in ("GET", "HEAD") or ".." in path.replace("\\", "/").split("/") or "\0" in path:
            return False
        return self._is_served(path.removeprefix(_FILE)) if path.startswith(_FILE) else bool(_READS.fullmatch(path))

    def _is_served(self, file: str) -> bool:
        try:
            return Path(file).resolve().is_relative_to(self.folder)
        except OSError:  # too long a name
            return False


_TOO_LARGE = 413, f"A request may have {LARGEST_BODY} bytes."


def _is_foreign(headers: list[tuple[str, str]], path: str) -> bool:
    """Whether another site asks through somebody's browser, which says so; a link to the page is fine."""
    found = dict(headers)
    origins = {value.partition("//")[2] for name, value in headers if name == "origin"}
    if origins - {found.get("host", "")}:
        return True
    elsewhere = found.get("sec-fetch-site", "none") not in ("none", "same-origin")
    return elsewhere and not (path == "/" and found.get("sec-fetch-dest") == "document")


def _announces_too_much(method: str, headers: dict[str, str]) -> bool:
    length = headers.get("content-length", "0")
    most = LARGEST_BODY if method == "POST" else 0
    if not length.isdecimal() or len(length) > 9 or int(length) > most:
        return True
    return most == 0 and "transfer-encoding" in headers


async def _body(receive: Receive) -> bytes | None:
    """All of it; ``None`` if it is too large, whatever was announced."""
    body, more = b"", True
    while more and len(body) <= LARGEST_BODY:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return None if more or len(body) > LARGEST_BODY else body


def _again(body: bytes, receive: Receive) -> Receive:
    """A body that was read already, and then whatever comes."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receiving() -> Message:
        return messages.pop() if messages else await receive()

    return receiving


async def _reply(send: Send, status: int, reason: str) -> None:
    body = reason.encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    # The connection closes: what is left of a body that nobody wants is not read.
    await send({"type": "http.response.start", "status": status, "headers": [*headers, (b"connection", b"close")]})
    await send({"type": "http.response.body", "body": body})
