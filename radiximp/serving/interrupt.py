"""^C in a terminal reaches every process of a server at once. One of them has something to say.

The launcher ends all of it with one line and exit code 130; once uvicorn serves, its own graceful stop comes first. The
workers are started with the signal blocked: their launcher ends them.
"""

from __future__ import annotations

import signal
import sys
import threading
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from typing import NoReturn

EXIT_CODE = 130  # what a shell reports for a command that ^C ended


def answer_in_launcher() -> None:
    """Take over SIGINT in this process and keep it from the workers that it starts from now on."""
    if threading.current_thread() is not threading.main_thread() or BaseProcess.start is _start_blocked:
        return
    # It unblocks the signal when it is started, so it must not be started within `_start_blocked`.
    resource_tracker.ensure_running()
    signal.signal(signal.SIGINT, _end)
    BaseProcess.start = _start_blocked


def _end(number: int, frame: object) -> NoReturn:
    # The launcher's `finally` kills the workers.
    print("error: interrupted; the server was stopped", file=sys.stderr, flush=True)
    raise SystemExit(EXIT_CODE)


_start = BaseProcess.start


def _start_blocked(process: BaseProcess) -> None:
    # A new program starts with its parent's signal mask, not with its handlers.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        _start(process)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
