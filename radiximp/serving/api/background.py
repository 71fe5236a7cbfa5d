"""What the HTTP process does beside answering: it orders load-backs while the server idles, and keeps the hotspots' file.

Both are tasks of its event loop that start with the app and end before it. Nothing runs unless it is configured.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from radiximp.config import PolicyConfig
from radiximp.serving.api import commands
from radiximp.serving.api.hotspots_file import HotspotsFile
from radiximp.serving.api.prewarm import Prewarmer

logger = logging.getLogger(__name__)

# Between two looks for an idle moment, and so between two orders, which bounds the bandwidth.
_LOOK_EVERY_S = 0.05
# Between two orders to a server that has nothing to bring: what is expected soon depends on the time.
_MOST_PAUSE_S = 0.5


class Background:
    """One a process: SGLang serves one app."""

    def __init__(self, manager, prewarmer: Prewarmer) -> None:
        config = PolicyConfig.from_mapping(manager.server_args.radix_eviction_policy_config)
        self._manager = manager
        self._file = HotspotsFile(manager, config, prewarmer) if config.hotspots_file else None
        self._orders_load_back = config.load_back
        self._tasks: list[asyncio.Task] = []

    def start(self) -> None:
        """Begin, in the running event loop."""
        if self._file is not None:
            self._tasks.append(asyncio.create_task(_logged(self._file.run(), "hotspots_file")))
        if self._orders_load_back:
            self._tasks.append(asyncio.create_task(_logged(self._order_load_backs(), "load_back")))

    async def end(self) -> None:
        """Stop, and write the file a last time; safe to call twice."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if tasks and self._file is not None:
            await self._file.save_before_exit()

    async def _order_load_backs(self) -> None:
        pause_s, due_s = _LOOK_EVERY_S, 0.0
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            if self._manager.rid_to_state:
                pause_s, due_s = _LOOK_EVERY_S, 0.0
                continue
            if time.monotonic() < due_s:
                continue
            # A request that comes now is behind the order, by one step's copies at most.
            replies = await commands.send(self._manager, "load_back", now_s=time.time())
            has_nothing = all(reply["state"] == "nothing" for reply in replies)
            pause_s = min(2 * pause_s, _MOST_PAUSE_S) if has_nothing else _LOOK_EVERY_S
            due_s = time.monotonic() + pause_s


async def _logged(work, name: str) -> None:
    try:
        await work
    except Exception as error:
        logger.exception("radiximp: %s has stopped, the server goes on without it: %s", name, error)


_current: Background | None = None


def run_with(app, prewarmer) -> None:
    """Have the app run the background work for as long as it serves. prewarmer: gives the one that the calls use."""
    serves = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(app) -> AsyncIterator:
        global _current
        async with serves(app) as state:
            from sglang.srt.entrypoints import http_server

            _current = Background(http_server.get_global_state().tokenizer_manager, prewarmer())
            _current.start()
            try:
                yield state
            finally:
                await _current.end()

    app.router.lifespan_context = lifespan


async def save_before_exit(sigterm_watchdog, manager) -> None:
    """Around SGLang's watchdog, which ends the process by itself: at SIGTERM the schedulers are there to be asked yet."""
    while _current is not None and not manager.gracefully_exit:
        await asyncio.sleep(_LOOK_EVERY_S)
    if _current is not None:
        await _current.end()
    await sigterm_watchdog(manager)
