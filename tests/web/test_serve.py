"""How the page is served, and what ``tomadiff web`` refuses."""

import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, build_opener

import pytest
from typer.testing import CliRunner

from tests import tiny
from tests.web.hostile import Request, addresses, ask
from tomadiff import embedded
from tomadiff.cli.main import app
from tomadiff.errors import SettingError
from tomadiff.web.page import is_private, serve
from tomadiff.web.session import Model, Session

WIDE = {"COLUMNS": "200"}
OPEN = build_opener(ProxyHandler({})).open  # no proxy


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["web", *arguments], env=WIDE)
    return result.exit_code, result.output


@pytest.fixture(scope="module")
def session() -> Session:
    return Session([Model("tiny", tiny.build("sdxl").pipe)])


@pytest.fixture
def served(session: Session, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, str]]:
    """The page on a machine whose proxy answers nobody, and whose settings would share it with the world."""
    pytest.importorskip("gradio", reason="gradio is not installed")
    for name, value in (("HTTP_PROXY", "http://127.0.0.1:9"), ("no_proxy", "example.org"), ("GRADIO_SHARE", "true"),
                        ("GRADIO_SERVER_NAME", "0.0.0.0"), ("GRADIO_ANALYTICS_ENABLED", "True")):  # fmt: skip
        monkeypatch.setenv(name, value)
    blocks, address = serve(session)
    yield blocks, address
    blocks.close()


def test_the_page_is_for_this_machine_alone_and_tells_nobody(served: tuple[Any, str], session: Session) -> None:
    blocks, address = served
    assert address.startswith("http://127.0.0.1:")
    assert (blocks.share, blocks.share_url, blocks.analytics_enabled) == (False, None, False)
    assert blocks.server_name == "127.0.0.1"
    with OPEN(address) as answer:
        page = answer.read().decode()
    assert "fonts.googleapis" not in page
    with OPEN(f"{address}config") as answer:
        config = json.load(answer)
    assert not config["analytics_enabled"]
    labels = [part["props"].get("label") for part in config["components"]]
    assert {"Prompt", "Ratio", "Method", "Model", "Width", "Height", "Steps", "Seed", "Where", "Step"} <= set(labels)
    # Nobody gets past the queue by calling a function of the page directly.
    assert {one["api_visibility"] for one in config["dependencies"] if one["queue"]} == {"private"}
    with pytest.raises(SettingError, match=f"port={blocks.server_port} is taken"):
        serve(session, blocks.server_port)


def test_another_address_takes_its_own_name_alone(session: Session) -> None:
    hosts = addresses()
    if not hosts:
        pytest.skip("nobody reaches this machine")
    blocks, address = serve(session, host=hosts[0])
    try:
        assert address.startswith(f"http://{hosts[0]}:")
        for host, expected in ((hosts[0], 200), ("evil.example", 400)):
            request = Request("", "GET", "/", (), {"Host": host})
            assert ask(hosts[0], blocks.server_port, request)[0] == expected
    finally:
        blocks.close()


@pytest.mark.parametrize(
    ("host", "private"),
    [("127.0.0.1", True), ("localhost", True), ("[::1]", True), ("192.168.1.5", False), ("my-machine", False)],
)
def test_which_addresses_only_this_machine_reaches(host: str, private: bool) -> None:
    assert is_private(host) is private


def test_who_opens_the_page_to_others_is_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gradio", reason="gradio is not installed")
    monkeypatch.setattr(embedded, "available", tuple)
    _, output = run("--host", "192.168.1.5")
    assert "Whoever reaches 192.168.1.5 can open this page and use this machine; it has no password." in output
    assert "Whoever" not in run()[1]


def test_without_gradio_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gradio", None)
    code, output = run()
    assert code == 1
    assert output.strip() == 'The page needs Gradio, which is not here: pip install "tomadiff[web]"'


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "no-such-folder"], "There is no model 'no-such-folder'"),
        (["--model", "."], "is not a diffusers pipeline"),
        (["--port", "0"], "--port"),
        (["--host", "0.0.0.0"], "opens every network"),
        (["--host", "::"], "opens every network"),
        (["--share"], "No such option"),
    ],
)
def test_what_cannot_be_served_is_refused_in_one_line(arguments: list[str], words: str, tmp_path: Path) -> None:
    pytest.importorskip("gradio", reason="gradio is not installed")
    code, output = run(*(str(tmp_path) if part == "." else part for part in arguments))
    assert code in (1, 2)
    assert words in output
    assert "Traceback" not in output


def test_an_installation_without_weights_says_what_to_give(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gradio", reason="gradio is not installed")
    monkeypatch.setattr(embedded, "available", tuple)
    code, output = run()
    assert (code, "give one with --model" in output) == (2, True)


def test_the_command_serves_what_it_is_told_and_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gradio = pytest.importorskip("gradio", reason="gradio is not installed")
    tiny.build("sdxl").pipe.save_pretrained(tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    seen: list[int] = []

    def look(blocks: Any) -> None:
        """Instead of waiting for Ctrl-C."""
        with OPEN(blocks.local_url) as answer:
            seen.append(answer.status)
        blocks.close()

    monkeypatch.setattr(embedded, "available", tuple)
    monkeypatch.setattr(gradio.Blocks, "block_thread", look)
    code, output = run("--model", str(tmp_path), "--port", str(port), "--no-browser", "--device", "cpu")
    assert (code, seen) == (0, [200]), output
    assert f"The page is at http://127.0.0.1:{port}/" in output
