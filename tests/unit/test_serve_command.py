"""`radiximp serve` and `radiximp model`: what a user reads before anything starts."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from radiximp.cli import main, serve


def fails_with(capsys: pytest.CaptureFixture[str], argv: list[str]) -> str:
    assert main(argv) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    return line


def test_taken_port(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        line = fails_with(capsys, ["serve", "--port", str(port)])
    assert line == (
        f"radiximp serve: cannot listen on 127.0.0.1:{port} (Address already in use); choose another PORT=\n"
    )


def test_port_out_of_range(capsys: pytest.CaptureFixture[str]) -> None:
    assert "port 70000 is out of range" in fails_with(capsys, ["serve", "--port", "70000"])


def test_model_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert fails_with(capsys, ["serve", "--port", "0", "--model", str(missing)]) == (
        f"radiximp serve: model folder {missing} does not exist\n"
    )
    assert fails_with(capsys, ["serve", "--port", "0", "--model", str(tmp_path)]) == (
        f"radiximp serve: model folder {tmp_path} has no config.json\n"
    )


def test_unusable_cache_folder(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RADIXIMP_CACHE", "/dev/null/cache")
    monkeypatch.setattr(serve, "has_gpu", lambda: False)
    assert "cache folder /dev/null/cache cannot be used" in fails_with(capsys, ["serve", "--port", "0"])
    assert "cache folder /dev/null/cache cannot be used" in fails_with(capsys, ["model"])


def test_gpu_without_a_model(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "has_gpu", lambda: True)
    assert "MODEL=" in fails_with(capsys, ["serve", "--port", "0"])


def test_command_line() -> None:
    command = serve.server_command(Path("/m"), "127.0.0.1", 30000, "importance", ["--page-size", "16"])
    assert command[1:] == [
        *("-m", "sglang.launch_server", "--model-path", "/m", "--host", "127.0.0.1", "--port", "30000"),
        *("--enable-hierarchical-cache", "--radix-eviction-policy", "importance", "--page-size", "16"),
    ]
