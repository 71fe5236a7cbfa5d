"""Keeps hotspots over restarts: `hotspots_file` in the policy's configuration.

The HTTP process asks the schedulers for them at an interval, so that a server that is killed loses an interval at most, and
merges them into the file under a lock: several servers may share one. At start it has them prefilled behind
users' requests. The file holds prompts, so only its owner may read it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import time
from functools import cache
from pathlib import Path

from radiximp.config import PolicyConfig
from radiximp.file_swap import SwapError, exclusive
from radiximp.prewarm import manifest
from radiximp.prewarm.manifest import Entry, ManifestError
from radiximp.replay.files import FileError, write_whole
from radiximp.serving.api import commands
from radiximp.serving.api.prewarm import Prewarmer

logger = logging.getLogger(__name__)

# Of one writing, so that a scheduler answers within milliseconds.
MAX_ENTRIES = 64
MAX_TOKENS = 1 << 17
_LOCK_WAIT_S = 5.0
_EXIT_WAIT_S = 10.0
_LOOK_EVERY_S = 0.1


@cache
def fingerprint_of(manager) -> dict:
    """What the tokens in a file must have been made with: {"model", "tokenizer", "page_tokens"}."""
    tokenizer = manager.tokenizer
    content = None
    if tokenizer is not None:
        content = [sorted(tokenizer.get_vocab().items()), getattr(tokenizer, "chat_template", None)]
    digest = hashlib.blake2b(json.dumps(content).encode(), digest_size=16).hexdigest()
    return {
        "model": manager.server_args.model_path,
        "tokenizer": digest,
        "page_tokens": manager.server_args.page_size or 1,
    }


async def ask(manager, limit: int = MAX_ENTRIES, max_tokens: int = MAX_TOKENS) -> list[Entry]:
    """The hotspots of all data-parallel ranks. Raises commands.NotActive."""
    now_s = time.time()
    names = {ref.lora_id: name for name, ref in manager.lora_ref_cache.items()}
    found = []
    for reply in await commands.send(manager, "hotspot_prompts", limit=limit, max_tokens=max_tokens):
        for prompt in reply["prompts"]:
            lora_id = prompt.pop("lora_id")
            if (
                lora_id is None or lora_id in names
            ):  # an adapter that was unloaded comes back under another id
                found.append(Entry(**prompt, lora=names.get(lora_id), seen_s=now_s))
    return manifest.merged(found, (), now_s)


class HotspotsFile:
    """Owned by the HTTP process's event loop."""

    def __init__(self, manager, config: PolicyConfig, prewarmer: Prewarmer) -> None:
        self._manager = manager
        self._config = config
        self._path = Path(config.hotspots_file)
        self._prewarmer = prewarmer
        self._fingerprint: dict = {}

    async def run(self) -> None:
        """Prefill what the file holds, and from then on keep it up to date; never returns."""
        self._fingerprint = await asyncio.to_thread(fingerprint_of, self._manager)
        await self._restore()
        while True:
            await asyncio.sleep(self._config.hotspots_interval_s)
            await self.save()

    async def save(self) -> None:
        """Merge the hotspots of now into the file; what goes wrong is one line, and tried again at the next interval."""
        if not self._fingerprint:
            return
        try:
            entries = await ask(self._manager)
            if entries:
                await asyncio.to_thread(self._merge, entries)
        except (commands.NotActive, FileError, SwapError, OSError) as error:
            logger.warning("radiximp: hotspots_file %s was not written: %s", self._path, error)

    async def save_before_exit(self) -> None:
        """As `save`, but the server ends in a few seconds whatever happens."""
        try:
            await asyncio.wait_for(self.save(), _EXIT_WAIT_S)
        except TimeoutError:
            logger.warning("radiximp: hotspots_file %s was not written: no answer in time", self._path)

    async def _restore(self) -> None:
        entries = await asyncio.to_thread(self._load)
        if not entries:
            return
        from sglang.srt.managers.tokenizer_manager import ServerStatus

        while self._manager.server_status != ServerStatus.Up:  # its own warm-up comes first
            await asyncio.sleep(_LOOK_EVERY_S)
        deadline_s = time.monotonic() + self._config.hotspots_restore_s
        job = self._prewarmer.submit([_prompt(entry) for entry in self._servable(entries)], None)
        while job.state in ("waiting", "running") and time.monotonic() < deadline_s:
            await asyncio.sleep(_LOOK_EVERY_S)
        self._prewarmer.cancel(job.job_id)
        warm = [result for result in job.results if result["error"] is None]
        logger.info(
            "radiximp: hotspots_file %s: %d of %d prompts are warm, %d tokens prefilled",
            self._path,
            len(warm),
            len(entries),
            sum(result["tokens_prefilled"] for result in warm),
        )

    def _servable(self, entries: list[Entry]) -> list[Entry]:
        names = self._manager.lora_ref_cache
        return [
            entry
            for entry in entries
            if len(entry.input_ids) < self._manager.context_len
            and (entry.lora is None or entry.lora in names)
        ]

    def _load(self) -> list[Entry]:
        try:
            return manifest.load(self._path.read_bytes(), self._fingerprint)
        except FileNotFoundError:
            return []
        except (ManifestError, OSError) as error:
            reason = getattr(error, "strerror", None) or error
            logger.warning("radiximp: hotspots_file %s is not used, starting cold: %s", self._path, reason)
            return []

    def _merge(self, entries: list[Entry]) -> None:
        """Under the lock, so that two servers never lose each other's entries."""
        deadline_s = time.monotonic() + _LOCK_WAIT_S
        while True:
            try:
                with exclusive(self._path.with_name(f".{self._path.name}.lock")):
                    self._merge_locked(entries)
                return
            except SwapError:
                if time.monotonic() > deadline_s:
                    raise SwapError("another server has held its lock for seconds") from None
                time.sleep(_LOOK_EVERY_S)

    def _merge_locked(self, entries: list[Entry]) -> None:
        others: list[Entry] = []
        try:
            others = manifest.load(self._path.read_bytes(), self._fingerprint)
        except FileNotFoundError:
            pass
        except ManifestError as error:
            aside = self._path.with_name(f"{self._path.name}.refused")
            os.replace(self._path, aside)
            logger.warning("radiximp: hotspots_file %s is kept as %s: %s", self._path, aside, error)
        data = manifest.dump(manifest.merged(entries, others, time.time()), self._fingerprint)
        write_whole(self._path, data, mode=0o600)


def _prompt(entry: Entry) -> dict:
    found = {"input_ids": entry.input_ids, "extra_key": entry.extra_key, "cache_salt": entry.cache_salt}
    return found if entry.lora is None else {**found, "lora_path": entry.lora}
