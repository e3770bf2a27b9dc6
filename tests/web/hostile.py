"""Random and hostile requests, from a seed; ``python -m tests.web.hostile --requests 200 --seed 0`` sends them.

Every request says which statuses are right for it. A request that the page would make itself is among them, so that
refusing everything does not pass.
"""

from __future__ import annotations

import http.client
import json
import random
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit

MEGABYTE = b"0" * 2**20
API = "/gradio_api"
ELSEWHERE = ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "169.254.169.254", "0.0.0.0", "")
SECRETS = (
    "/etc/passwd",
    "/etc/hostname",
    "/proc/self/environ",
    "~/.ssh/id_rsa",
    "pyproject.toml",
    "C:\\Windows\\win.ini",
)


@dataclass(frozen=True)
class Request:
    """One request, and the statuses that are right for it; if there are ``megabytes``, they are its body."""

    kind: str
    method: str
    path: str
    right: tuple[int, ...]
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    megabytes: int = 0
    chunked: bool = False


@dataclass(frozen=True)
class Page:
    """What the requests need to know of a page: where it is, two of its functions, and what the first is given."""

    host: str
    port: int
    generating: int
    checking: int
    given: tuple[Any, ...]

    @classmethod
    def at(cls, address: str) -> Page:
        """The page at an address, as it describes itself."""
        parts = urlsplit(address)
        assert parts.hostname
        assert parts.port
        config = json.loads(ask(parts.hostname, parts.port, Request("config", "GET", "/config", (200,)))[1])
        generating, checking = (
            max((one for one in config["dependencies"] if one["queue"] is queued), key=lambda one: len(one["inputs"]))
            for queued in (True, False)
        )
        fields = {part["id"]: part["props"] for part in config["components"]}
        small = {"Width": 64, "Height": 64, "Steps": 1}
        given = (small.get(fields[part].get("label"), fields[part].get("value")) for part in generating["inputs"])
        return cls(parts.hostname, parts.port, generating["id"], checking["id"], tuple(given))


def requests(page: Page, seed: int = 0) -> Iterator[Request]:
    """Hostile requests without end; the same for the same seed."""
    dice = random.Random(seed)
    kinds: list[Callable[[random.Random, Page], Request]] = [
        traversal, huge, wrong_types, deep, foreign_host, foreign_origin, upload, flood, unknown, stream, socket_join,
        proxied, direct, garbled, honest,
    ]  # fmt: skip
    while True:
        for kind in dice.sample(kinds, len(kinds)):
            yield kind(dice, page)


def _json(value: object, **headers: str) -> dict[str, Any]:
    return {"body": json.dumps(value).encode(), "headers": {"Content-Type": "application/json", **headers}}


def _session(dice: random.Random) -> str:
    return f"{dice.getrandbits(48):x}"


def traversal(dice: random.Random, _: Page) -> Request:
    """A file that is none of the page's."""
    up = dice.choice(["../", "..%2f", "%2e%2e/", "..\\", "..%5c", "....//", "%252e%252e/", "./../"]) * dice.randint(
        1, 12
    )
    secret = dice.choice(SECRETS)
    start = dice.choice(
        [f"{API}/file=", f"{API}/file/", "/file=", "/assets/", "/static/", "/svelte/", "/", "/custom_component/"]
    )
    return Request(
        "traversal", dice.choice(["GET", "HEAD"]), start + dice.choice([up, ""]) + quote(secret), (400, 403, 404, 405)
    )


def huge(dice: random.Random, _: Page) -> Request:
    """A body that nobody should read to its end, announced or not."""
    path, chunked = dice.choice([f"{API}/queue/join", f"{API}/run/predict", f"{API}/upload"]), dice.random() < 0.5
    right = (404,) if path.endswith("upload") else (413,)
    return Request("huge", "POST", path, right, {"Content-Type": "application/json"}, megabytes=200, chunked=chunked)


def wrong_types(dice: random.Random, page: Page) -> Request:
    """Something else than what a function of the page takes."""
    junk: list[Any] = [None, True, -1, 1e308, "x" * 5000, [], {}, [[1]], {"path": "/etc/passwd"}, 10**30]
    data = [dice.choice(junk) for _ in range(dice.randint(0, 12))]
    number = dice.choice([page.checking, page.checking, -1, 10**9, "0", None])
    body = {"data": dice.choice([data, dice.choices(junk, k=8), "data", None]), "fn_index": number}
    return Request("wrong types", "POST", f"{API}/run/predict", (200, 400, 404, 422, 500), **_json(body))


def deep(dice: random.Random, _: Page) -> Request:
    """JSON within JSON, as deep as fits."""
    opening, closing = dice.choice([("[", "]"), ('{"data":', "}")])
    depth = dice.choice([500, 5000, 30000 // len(opening)])
    body = opening * depth + "1" + closing * depth
    path = dice.choice([f"{API}/queue/join", f"{API}/run/predict"])
    return Request("deep JSON", "POST", path, (400, 422), {"Content-Type": "application/json"}, body.encode())


def foreign_host(dice: random.Random, page: Page) -> Request:
    """A name that somebody made point here."""
    path = dice.choice(["/", "/config", f"{API}/queue/data?session_hash=x", f"{API}/heartbeat/x"])
    host = dice.choice(ELSEWHERE) + dice.choice(["", f":{page.port}"])
    return Request("foreign host", "GET", path, (400,), {"Host": host})


def foreign_origin(dice: random.Random, page: Page) -> Request:
    """Another site, through a visitor's browser."""
    told = dice.choice(
        [{"Origin": f"http://{dice.choice(ELSEWHERE)}"}, {"Origin": "null"}, {"Origin": "http://localhost:3000"}]
    )
    told = dice.choice([told, {"Sec-Fetch-Site": dice.choice(["cross-site", "same-site"])}])
    body = {"data": [], "fn_index": page.generating, "session_hash": _session(dice)}
    path = dice.choice([f"{API}/queue/join", f"{API}/run/predict"])
    return Request("foreign origin", "POST", path, (403,), **_json(body, **told))


def upload(dice: random.Random, _: Page) -> Request:
    """A file for a page that takes none."""
    name = dice.choice(["x.png", "../../x.py", "/tmp/x"])
    part = f'--B\r\nContent-Disposition: form-data; name="files"; filename="{name}"\r\n\r\n'.encode()
    told = {"Content-Type": "multipart/form-data; boundary=B"}
    path = dice.choice([f"{API}/upload", f"{API}/upload?upload_id=1", "/upload", f"{API}/component_server"])
    return Request("upload", "POST", path, (404,), told, part + b"0" * dice.randint(0, 40000) + b"\r\n--B--\r\n")


def flood(dice: random.Random, page: Page) -> Request:
    """One generating more in the queue."""
    shuffled = dice.sample(page.given, len(page.given))
    data = dice.choice([list(page.given), shuffled])
    body = {"data": data, "fn_index": page.generating, "session_hash": _session(dice)}
    return Request("flood", "POST", f"{API}/queue/join", (200, 503), **_json(body))


def unknown(dice: random.Random, _: Page) -> Request:
    """Routes that Gradio has and the page does not use, and routes that nobody has."""
    known = ["info", "openapi.json", "vibe-code", "vibe-edit", "process_recording", "dev/reload", "token", "user",
             "runs", "stream/x", "deep_link", "call/v2/generate", "call/generate", "queue/status",
             "upload_progress?upload_id=1", "component_server", "run-history/buckets", "profiling/traces", "reset",
             "cancel"]  # fmt: skip
    path = dice.choice([f"{API}/{dice.choice(known)}", "/monitoring", "/login", "/docs", "/openapi.json",
                        f"{API}/mcp/sse", f"/{_session(dice)}", "/" + "a" * dice.choice([100, 5000])])  # fmt: skip
    method = dice.choice(["GET", "POST", "PUT", "DELETE", "PATCH", "TRACE", "OPTIONS"])
    return Request("unknown route", method, path, (404,))


def stream(dice: random.Random, _: Page) -> Request:
    """Listening to what nobody says."""
    path = dice.choice([f"{API}/queue/data?session_hash={_session(dice)}", f"{API}/heartbeat/{_session(dice)}"])
    return Request("stream", "GET", path, (200,))


def socket_join(dice: random.Random, _: Page) -> Request:
    """A web socket."""
    told = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}  # fmt: skip
    path = dice.choice(["/queue/join", f"{API}/queue/join", "/ws", "/"])
    return Request("web socket", "GET", path, (200, 403, 404) if path == "/" else (403, 404), told)


def proxied(dice: random.Random, _: Page) -> Request:
    """The page as a way to somewhere else."""
    target = dice.choice(
        ["http://example.org/", "https://evil.example/x", "http://127.0.0.1:22/", "http://169.254.169.254/"]
    )
    path = dice.choice([f"{API}/proxy=", f"{API}/file=", f"{API}/file/", "/proxy="]) + dice.choice(
        [target, quote(target, safe="")]
    )
    return Request("proxy", "GET", path, (404,))


def direct(dice: random.Random, page: Page) -> Request:
    """Generating past the queue."""
    body = {"data": list(page.given), "fn_index": page.generating, "session_hash": _session(dice)}
    return Request("direct call", "POST", f"{API}/run/predict", (404,), **_json(body))


def garbled(dice: random.Random, _: Page) -> Request:
    """Bytes."""
    body = dice.randbytes(dice.randint(1, 3000))
    path = dice.choice([f"{API}/queue/join", f"{API}/run/predict"])
    return Request(
        "garbled",
        "POST",
        path,
        (400, 415, 422),
        {"Content-Type": dice.choice(["application/json", "text/plain"])},
        body,
    )


def honest(dice: random.Random, page: Page) -> Request:
    """What the page itself asks for."""
    told = {"Origin": f"http://{page.host}:{page.port}", "Sec-Fetch-Site": "same-origin"}
    return Request("honest", "GET", dice.choice(["/", "/config", "/theme.css"]), (200,), told)


def ask(host: str, port: int, request: Request, patience: float = 60) -> tuple[int, bytes]:
    """Send a request: its status, and the beginning of what comes back."""
    line = http.client.HTTPConnection(host, port, timeout=patience)
    try:
        line.putrequest(request.method, request.path, skip_host="Host" in request.headers, skip_accept_encoding=True)
        length = request.megabytes * len(MEGABYTE) or len(request.body)
        told = (
            {"Transfer-Encoding": "chunked"} if request.chunked else {"Content-Length": str(length)} if length else {}
        )
        for name, value in {**told, **request.headers}.items():
            line.putheader(name, value)
        line.endheaders()
        _send(line, request)
        reply = line.getresponse()
        ends = reply.getheader("content-type", "").startswith("text/event-stream")
        return reply.status, reply.read1(200) if ends else reply.read()
    finally:
        line.close()


def _send(line: http.client.HTTPConnection, request: Request) -> None:
    try:
        if request.body:
            line.send(request.body)
        for _ in range(request.megabytes):
            line.send(b"%x\r\n%b\r\n" % (len(MEGABYTE), MEGABYTE) if request.chunked else MEGABYTE)
        if request.chunked:
            line.send(b"0\r\n\r\n")
    except OSError:  # the server has heard enough, and has said so
        pass


def send(page: Page, count: int, seed: int = 0) -> tuple[Counter[tuple[str, int]], list[str]]:
    """Send ``count`` requests: how often each kind got each status, and those that got a wrong one."""
    seen: Counter[tuple[str, int]] = Counter()
    wrong = []
    for _, request in zip(range(count), requests(page, seed), strict=False):
        status, _ = ask(page.host, page.port, request)
        seen[request.kind, status] += 1
        if status not in request.right:
            wrong.append(f"{request.kind}: {request.method} {request.path[:80]} {request.headers} gave {status}")
    return seen, wrong


def addresses() -> list[str]:
    """Addresses by which others reach this machine."""
    found = {str(info[4][0]) for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect(("192.0.2.1", 9))  # nothing is sent
        found.add(probe.getsockname()[0])
    return [host for host in found if not host.startswith("127.")]


def reachable(port: int) -> list[str]:
    """Those of them that take a connection at ``port``."""
    return [host for host in addresses() if _takes(host, port)]


def _takes(host: str, port: int) -> bool:
    with socket.socket() as line:
        line.settimeout(2)
        return line.connect_ex((host, port)) == 0


def main() -> None:
    """Serve a page with a tiny model of random weights, send requests, and print what came back."""
    import argparse

    from tests import tiny
    from tomadiff.web.page import serve
    from tomadiff.web.session import Model, Session

    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    told = parser.parse_args()
    blocks, address = serve(Session([Model("tiny", tiny.build("sdxl").pipe)]))
    seen, wrong = send(Page.at(address), told.requests, told.seed)
    blocks.close()
    print(*(f"{kind:16} {status} × {count}" for (kind, status), count in sorted(seen.items())), *wrong, sep="\n")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
