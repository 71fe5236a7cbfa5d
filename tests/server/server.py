"""Starts the real server for a test: `with launch(["--page-size", "16"]) as server: server.generate(...)`.

The server runs in a process group of its own on a free port, its log is kept in a file, and whatever
happens in the block, no process of the group survives it.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from radiximp.serving import default_model

START_TIMEOUT_S = 400.0
STOP_TIMEOUT_S = 20.0
POLL_S = 0.25
REQUEST_TIMEOUT_S = 300.0


class ServerDied(AssertionError):
    """The server ended before it was healthy; the message holds its exit code and the end of its log."""


@dataclass
class Server:
    """A running server. Answers that are not 2xx raise `httpx.HTTPStatusError`."""

    port: int
    process: subprocess.Popen[bytes]
    log_path: Path
    start_s: float  # from the launch to the first healthy answer

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str, **params: Any) -> httpx.Response:
        return httpx.get(
            self.url + path, params=params, timeout=REQUEST_TIMEOUT_S, trust_env=False
        ).raise_for_status()

    def post(self, path: str, body: object = None, **params: Any) -> httpx.Response:
        return httpx.post(
            self.url + path, json=body, params=params, timeout=REQUEST_TIMEOUT_S, trust_env=False
        ).raise_for_status()

    def generate(self, prompt: str | list[int], num_tokens: int = 8, **body: Any) -> dict[str, Any]:
        """Greedy tokens with their log-probabilities from `/generate`; `prompt` is text or token ids."""
        key = "text" if isinstance(prompt, str) else "input_ids"
        sampling = {"temperature": 0, "max_new_tokens": num_tokens, "ignore_eos": True}
        request = {key: prompt, "sampling_params": sampling, "return_logprob": True, **body}
        return self.post("/generate", request).json()

    def chat(self, text: str, num_tokens: int = 16, **body: Any) -> dict[str, Any]:
        """One greedy answer from `/v1/chat/completions`."""
        messages = [{"role": "user", "content": text}]
        request = {"model": "default", "messages": messages, "max_tokens": num_tokens, "temperature": 0}
        return self.post("/v1/chat/completions", {**request, **body}).json()

    def flush(self) -> None:
        """Empty the device and host tiers; waits until the scheduler is idle."""
        self.post("/flush_cache", timeout=30)

    def log(self) -> str:
        """Everything the server and its workers have printed so far."""
        return self.log_path.read_text(errors="replace")

    def processes(self) -> list[psutil.Process]:
        """The server's process and all its descendants."""
        parent = psutil.Process(self.process.pid)
        return [parent, *parent.children(recursive=True)]


@contextmanager
def launch(
    flags: Sequence[str] = (),
    *,
    model: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    command: Sequence[str] | None = None,
    hierarchical_cache: bool = True,
) -> Iterator[Server]:
    """A healthy server with `flags` added; the small default model unless `model` is given.

    `command` replaces the whole command line up to `flags` (it must accept `--port`). SERVER_FLAGS of the environment, or of
    `env`, are added to the usual one.
    """
    environment = {**os.environ, **(env or {})}
    if command is None:
        model = model or default_model.prepare(lambda line: None)
        command = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(model)]
        command += shlex.split(environment.get("SERVER_FLAGS", ""))
        if hierarchical_cache:
            command = [*command, "--enable-hierarchical-cache"]
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="radiximp-server-") as folder:
        log_path = Path(folder) / "server.log"
        with log_path.open("wb") as log:
            started = time.monotonic()
            process = subprocess.Popen(
                [*command, "--port", str(port), *flags],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        server = Server(port, process, log_path, start_s=0.0)
        try:
            _wait_until_healthy(server, started)
            server.start_s = time.monotonic() - started
            yield server
        except BaseException:
            sys.stderr.write(f"--- end of the server's log ---\n{tail(log_path)}\n")
            raise
        finally:
            stop(process)


def run_to_exit(
    flags: Sequence[str], *, model: str | Path, env: Mapping[str, str] | None = None, timeout_s: float = 240.0
) -> tuple[int, str]:
    """Exit code and output of a server that is expected to refuse its flags."""
    command = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(model), *flags]
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=timeout_s,
        start_new_session=True,
        env={**os.environ, **(env or {})},
    )
    return done.returncode, done.stdout.decode(errors="replace")


def interrupt_start(
    flags: Sequence[str], *, model: str | Path, is_time: Callable[[psutil.Process, str], bool]
) -> tuple[int, str, list[psutil.Process]]:
    """^C, as a terminal sends it, to a server that starts, as soon as `is_time(process, log)`.

    Returns its exit code, its output and the processes that it left behind.
    """
    command = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(model), *flags]
    with tempfile.TemporaryDirectory(prefix="radiximp-server-") as folder:
        log_path = Path(folder) / "server.log"
        with log_path.open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            started = psutil.Process(process.pid)
            while not is_time(started, log_path.read_text(errors="replace")):
                try:
                    raise ServerDied(f"ended with {process.wait(POLL_S)}\n{tail(log_path)}")
                except subprocess.TimeoutExpired:
                    continue
            workers = started.children(recursive=True)
            _signal_group(process.pid, signal.SIGINT)
            code = process.wait(STOP_TIMEOUT_S)
            _, left = psutil.wait_procs(workers, timeout=STOP_TIMEOUT_S)
            return code, log_path.read_text(errors="replace"), left
        finally:
            stop(process)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def stop(process: subprocess.Popen[bytes]) -> None:
    """End the process group: SIGTERM, then SIGKILL for whatever is left."""
    members = _group_members(process.pid)
    _signal_group(process.pid, signal.SIGTERM)
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        pass
    _signal_group(process.pid, signal.SIGKILL)
    process.wait()
    psutil.wait_procs(members, timeout=STOP_TIMEOUT_S)


def tail(path: Path, num_lines: int = 60) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-num_lines:])


def _wait_until_healthy(server: Server, started: float) -> None:
    while time.monotonic() - started < START_TIMEOUT_S:
        try:
            code = server.process.wait(POLL_S)
        except subprocess.TimeoutExpired:
            pass
        else:
            raise ServerDied(f"server ended with exit code {code}\n{tail(server.log_path)}")
        try:
            if httpx.get(server.url + "/health", timeout=30, trust_env=False).status_code == 200:
                return
        except httpx.TransportError:
            continue
    raise ServerDied(f"server not healthy after {START_TIMEOUT_S:.0f} s\n{tail(server.log_path)}")


def _group_members(group: int) -> list[psutil.Process]:
    members = []
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == group:
                members.append(process)
        except ProcessLookupError:
            continue
    return members


def _signal_group(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        pass
