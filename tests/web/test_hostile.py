"""What the page refuses, and that nothing it is sent changes anything: hosts, origins, sizes, files, the queue."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import tiny
from tests.web.hostile import API, Page, Request, ask, reachable, send
from tests.web.watched import close, resident, watched
from tomadiff.evaluation.runs.variants import Variant
from tomadiff.web import security
from tomadiff.web.request import ImageRequest, ImageSettings
from tomadiff.web.security import LARGEST_BODY, Fence
from tomadiff.web.session import Model, Session

pytest.importorskip("gradio", reason="gradio is not installed")
from tomadiff.web.page import MOST_WAITING, folder, serve

JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def model() -> Model:
    return Model("tiny", tiny.build("sdxl").pipe)


@pytest.fixture(scope="module")
def page(model: Model) -> Iterator[Page]:
    session = Session([model])
    session.compare(
        ImageRequest(ImageSettings("tiny", "a fox", 0, 1, 64, 64), Variant.named("toma", 0.5))
    )  # imports all it needs
    blocks, address = serve(session)
    yield Page.at(address)
    close(blocks)


def status(page: Page, method: str, path: str, body: bytes = b"", **headers: str) -> int:
    told = {name.replace("_", "-"): value for name, value in headers.items()}
    return ask(page.host, page.port, Request("", method, path, (), told, body))[0]


def join(page: Page, session: str) -> int:
    body = {"data": list(page.given), "fn_index": page.generating, "session_hash": session}
    return status(page, "POST", f"{API}/queue/join", json.dumps(body).encode(), **JSON)


def test_there_is_no_upload(page: Page) -> None:
    body = b'--B\r\nContent-Disposition: form-data; name="files"; filename="x"\r\n\r\n0\r\n--B--\r\n'
    assert status(page, "POST", f"{API}/upload", body, Content_Type="multipart/form-data; boundary=B") == 404
    assert not [path for path in Path(folder().name).rglob("*") if path.name == "x"]


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_of_200_megabytes_is_not_read(page: Page, chunked: bool) -> None:
    large = Request("", "POST", f"{API}/run/predict", (), JSON, megabytes=200, chunked=chunked)
    before = resident()
    assert ask(page.host, page.port, large)[0] == 413
    assert resident() - before < 20 * 2**20


def test_only_its_own_names_lead_to_the_page(page: Page) -> None:
    assert [status(page, "GET", "/", Host=host) for host in ("localhost", f"127.0.0.1:{page.port}")] == [200, 200]
    for host in ("evil.example", f"evil.example:{page.port}", "127.0.0.1.evil.example", "192.168.1.5", ""):
        assert status(page, "GET", "/", Host=host) == 400, host


def test_other_sites_cannot_ask_through_a_browser(page: Page) -> None:
    own = f"http://127.0.0.1:{page.port}"
    for origin in ("http://evil.example", "null", "http://localhost:3000", f"http://127.0.0.1:{page.port + 1}"):
        assert status(page, "POST", f"{API}/queue/join", b"{}", Origin=origin, **JSON) == 403, origin
        assert status(page, "GET", "/config", Origin=origin) == 403
    assert status(page, "POST", f"{API}/queue/join", b"{}", Origin=own, **JSON) in (
        400,
        422,
    )  # heard, but it says nothing
    assert status(page, "GET", f"{API}/heartbeat/x", Sec_Fetch_Site="cross-site") == 403
    framed = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Dest": "iframe"}
    assert [status(page, "GET", "/", **{**framed, "Sec_Fetch_Dest": kind}) for kind in ("iframe", "document")] == [
        403,
        200,
    ]


def test_files_come_from_the_pages_own_folder_alone(page: Page, tmp_path: Path) -> None:
    own = Path(folder().name)
    (own / "image.png").write_bytes(b"own")
    (tmp_path / "secret.png").write_bytes(b"secret")
    (own / "link.png").symlink_to(tmp_path / "secret.png")
    assert ask(page.host, page.port, Request("", "GET", f"{API}/file={own}/image.png", ())) == (200, b"own")
    for path in (f"{tmp_path}/secret.png", f"{own}/../{tmp_path.name}/secret.png", f"{own}/link.png", "pyproject.toml"):
        assert status(page, "GET", f"{API}/file={path}") == 404, path
    assert own.stat().st_mode & 0o077 == 0  # nor do other users of the machine look into it
    for name in ("image.png", "link.png"):
        (own / name).unlink()


def test_nothing_is_fetched_for_others(page: Page) -> None:
    with watched() as seen:
        for path in ("file=http://192.0.2.1/", "proxy=http://192.0.2.1/", "file=https%3A%2F%2F192.0.2.1%2F"):
            assert status(page, "GET", f"{API}/{path}") == 404
    assert seen.hosts <= {"127.0.0.1"}


def test_the_queue_is_full_at_some_time(page: Page, model: Model) -> None:
    with model.lock:  # nothing is generated meanwhile
        got = [join(page, f"s{number}") for number in range(MOST_WAITING + 4)]
    assert got[:MOST_WAITING] == [200] * MOST_WAITING
    assert got[-1] == 503


def test_nobody_gets_past_the_queue(page: Page) -> None:
    body = {"data": list(page.given), "fn_index": page.generating, "session_hash": "x"}
    assert status(page, "POST", f"{API}/run/predict", json.dumps(body).encode(), **JSON) == 404


def test_forms_and_plain_text_are_not_what_the_page_sends(page: Page) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=B"):
        assert status(page, "POST", f"{API}/run/predict", b"{}", Content_Type=kind) == 415


# ---------------------------------------------------------------------------------------------- the fence alone
TYPE = b"content-type", b"application/json"


def through(
    scope: dict[str, Any], messages: list[dict[str, Any]], tmp_path: Path, calls: int = 0
) -> tuple[list[dict[str, Any]], list[bytes]]:
    """What a fence sends for a request, and the bodies that got through it."""
    sent: list[dict[str, Any]] = []
    bodies: list[bytes] = []

    async def app(_: Any, receive: Any, send: Any) -> None:
        bodies.append((await receive())["body"])
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive() -> Any:
        return messages.pop(0) if messages else await asyncio.sleep(3600)

    async def send(message: Any) -> None:
        sent.append(message)

    fenced = Fence(app, tmp_path)
    fenced._calls = calls
    asyncio.run(fenced({"headers": [], **scope}, receive, send))
    return sent, bodies


POST = {"type": "http", "method": "POST", "path": f"{API}/queue/join", "headers": [TYPE]}


def test_a_body_in_pieces_comes_through_in_one(tmp_path: Path) -> None:
    pieces = [{"body": b"ab", "more_body": True}, {"body": b"c", "more_body": False}]
    sent, bodies = through(POST, pieces, tmp_path)
    assert (sent[0]["status"], bodies) == (200, [b"abc"])


def test_a_body_that_grows_beyond_what_it_announced_is_cut_off(tmp_path: Path) -> None:
    pieces = [{"body": b"0" * 1000, "more_body": True} for _ in range(LARGEST_BODY // 1000 + 5)]
    sent, bodies = through({**POST, "headers": [TYPE, (b"content-length", b"1000")]}, pieces, tmp_path)
    assert (sent[0]["status"], bodies, len(pieces)) == (413, [], 4)


def test_a_body_that_never_ends_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security, "PATIENCE", 0.01)
    sent, bodies = through(POST, [{"body": b"a", "more_body": True}], tmp_path)
    assert (sent[0]["status"], bodies) == (408, [])


@pytest.mark.parametrize("length", [b"-1", b"1e9", b"\xb2", b"9" * 5000, b"99999999"])
def test_lengths_that_make_no_sense_are_refused(length: bytes, tmp_path: Path) -> None:
    assert through({**POST, "headers": [TYPE, (b"content-length", length)]}, [], tmp_path)[0][0]["status"] == 413
    read = {"type": "http", "method": "GET", "path": "/", "headers": [(b"transfer-encoding", b"chunked")]}
    assert through(read, [], tmp_path)[0][0]["status"] == 413


def test_there_are_only_so_many_requests_at_a_time(tmp_path: Path) -> None:
    assert through(POST, [{"body": b""}], tmp_path, calls=security.MOST_CALLS)[0][0]["status"] == 503


def test_web_sockets_are_closed(tmp_path: Path) -> None:
    sent, _ = through({"type": "websocket", "path": "/"}, [], tmp_path)
    assert sent == [{"type": "websocket.close", "code": 1008}]


# ---------------------------------------------------------------------------------------------- all at once
def generated(model: Model) -> np.ndarray:
    """An image of the model as it is."""
    import torch

    call = {"height": 64, "width": 64, "num_inference_steps": 2, "output_type": "np"}
    with model.lock:
        generator = torch.Generator().manual_seed(0)
        return np.asarray(model.pipe("a fox", generator=generator, **call).images)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc")
@pytest.mark.parametrize("count", [45, pytest.param(200, marks=pytest.mark.slow)])
def test_hostile_requests_leave_everything_as_it_was(
    page: Page, model: Model, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    before, threads = generated(model), threading.active_count()
    send(page, 30, seed=1)  # until the server has its threads
    size = resident()
    with watched() as seen:
        statuses, wrong = send(page, count, seed=0)
        after = generated(model)  # waits for whatever is generated still
    grown = resident() - size
    record_property("grown", grown)
    assert wrong == []
    assert len({kind for kind, _ in statuses}) == 15
    assert np.array_equal(after, before)
    assert grown < 40 * 2**20
    assert {
        path for path in seen.paths if not path.startswith((folder().name, "/dev/")) and "__pycache__" not in path
    } == set()
    assert os.listdir(tmp_path) == []
    assert seen.hosts <= {"127.0.0.1", "localhost"}
    assert reachable(page.port) == []
    assert threading.active_count() < threads + 60
    assert status(page, "GET", "/") == 200
