"""Calls of one function spread over processes: results in the order of the tasks, no process left behind.

Workers never see ^C: the parent does, and ends them. A worker whose parent is gone ends at its next message.
"""

from __future__ import annotations

import multiprocessing
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any

Progress = Callable[[int], None]
# Importable by name, called with a task and a function to report progress to.
Job = Callable[[Any, Progress], Any]


class WorkerError(RuntimeError):
    """A worker process ended on its own."""


def run_all(job: Job, tasks: Sequence[Any], num_processes: int, on_progress: Progress) -> list[Any]:
    """[job(task) for each task]; in this process if one is enough. Raises what a job raises, and WorkerError."""
    num_processes = min(num_processes, len(tasks))
    if num_processes <= 1:
        return [job(task, on_progress) for task in tasks]
    processes: list = []
    connections: list[Connection] = []
    try:
        with _interrupts_held():
            _start(job, num_processes, processes, connections)
        return _collected(tasks, processes, connections, on_progress)
    finally:
        for connection in connections:
            connection.close()
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()


def _start(job: Job, num_processes: int, processes: list, connections: list[Connection]) -> None:
    context = multiprocessing.get_context("spawn")
    for _ in range(num_processes):
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, job), daemon=True)
        process.start()
        theirs.close()
        processes.append(process)
        connections.append(ours)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """A ^C inside the block is raised when it ends; processes started in it never see one."""
    # The first process starts the tracker otherwise, and that lifts the block.
    resource_tracker.ensure_running()
    interrupts: list[int] = []
    is_main = threading.current_thread() is threading.main_thread()
    handler = (
        signal.signal(signal.SIGINT, lambda number, frame: interrupts.append(number)) if is_main else None
    )
    # What is blocked here stays blocked in the children; here another thread may still receive it.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if is_main:
            signal.signal(signal.SIGINT, handler)
    if interrupts:
        raise KeyboardInterrupt


def _collected(
    tasks: Sequence[Any], processes: list, connections: list[Connection], on_progress: Progress
) -> list[Any]:
    results: dict[int, Any] = {}
    waiting = list(enumerate(tasks))[::-1]
    try:
        for connection in connections:
            connection.send(waiting.pop())
        while len(results) < len(tasks):
            for connection in wait(connections):
                kind, value = connection.recv()
                if kind == "progress":
                    on_progress(value)
                elif kind == "failed":
                    raise value
                else:
                    index, results[index] = value
                    if waiting:
                        connection.send(waiting.pop())
    except (EOFError, BrokenPipeError, ConnectionResetError):
        process = processes[connections.index(connection)]
        process.join()
        raise WorkerError(
            f"a worker process ended with code {process.exitcode} (out of memory? try fewer --jobs)"
        ) from None
    return [results[index] for index in range(len(tasks))]


def _work(connection: Connection, job: Job) -> None:
    def report(amount: int) -> None:
        connection.send(("progress", amount))

    try:
        while True:
            index, task = connection.recv()
            try:
                connection.send(("done", (index, job(task, report))))
            except (BrokenPipeError, ConnectionResetError):
                raise
            except Exception as error:
                error.add_note(traceback.format_exc())
                connection.send(("failed", error))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
