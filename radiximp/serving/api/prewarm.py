"""Pre-warm jobs in the HTTP process: known prompts are prefilled, a piece at a time, when no user's request is waiting.

The queue is bounded in jobs and tokens; an ended job keeps its results, and within a bound its prompts, until newer ones
push it out. The pieces run as requests of their own, each a longer prefix of the prompt, so all that holds for requests
holds for them: they are admitted, evicted and cached as any. A piece is as long as takes a quarter of a second, which is
the most that a user's request waits for one.
"""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
from array import array
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field

from radiximp.serving.api import commands
from radiximp.serving.api.pacing import Pacing
from radiximp.serving.api.prompts import as_keys
from radiximp.serving.metrics import jobs
from radiximp.serving.requests import warm_rid

MAX_WAITING = 64
MAX_WAITING_TOKENS = 1 << 21
# Ended jobs that can still be asked for, and tokens of their prompts, which a pin can name by the job's id.
MAX_KEPT = 1024
MAX_KEPT_TOKENS = 1 << 21


class QueueFull(RuntimeError):
    """As many jobs wait as may."""


class NotKept(RuntimeError):
    """A job's prompts cannot be named by its id; the message says why."""


@dataclass(eq=False)
class Job:
    """One call: its prompts, and what became of each."""

    job_id: str
    prompts: list[dict]
    num_prompts: int
    tier: str
    retain_s: float | None
    state: str = "waiting"  # running, done, cancelled
    results: list[dict] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """Of the prompts that are still held."""
        return sum(len(prompt["input_ids"]) for prompt in self.prompts)

    def describe(self) -> dict:
        """As `GET /radiximp/prewarm/{id}` answers."""
        return {
            "id": self.job_id,
            "state": self.state,
            "tier": self.tier,
            "prompts": self.num_prompts,
            "results": self.results,
        }

    def summary(self) -> dict:
        """As `GET /radiximp/prewarm` lists it: how far it is, without what became of each prompt."""
        return {
            "id": self.job_id,
            "state": self.state,
            "tier": self.tier,
            "prompts": self.num_prompts,
            "ended_prompts": len(self.results),
            "failed_prompts": sum(result["error"] is not None for result in self.results),
            "tokens_prefilled": sum(result["tokens_prefilled"] for result in self.results),
        }

    def end(self, state: str) -> None:
        """Nothing more comes of it; what was done is kept in 4 bytes a token."""
        jobs.count(state)
        self.state = state
        prompts = self.prompts if state == "done" else []
        self.prompts = [{**prompt, "input_ids": array("i", prompt["input_ids"])} for prompt in prompts]


class Prewarmer:
    """Owned by the HTTP process's event loop."""

    def __init__(self, tokenizer_manager) -> None:
        self._manager = tokenizer_manager
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._waiting: deque[Job] = deque()
        self._worker: asyncio.Task | None = None
        self._pacing = Pacing(tokenizer_manager)
        self._counts: Counter[str] = Counter()

    def check_room(self) -> None:
        """Raises QueueFull if no further job may wait."""
        num_tokens = sum(job.num_tokens for job in self._waiting)
        if len(self._waiting) >= MAX_WAITING or num_tokens > MAX_WAITING_TOKENS:
            jobs.count("refused")
            raise QueueFull(
                f"{len(self._waiting)} pre-warm jobs with {num_tokens} tokens are waiting already"
            )

    def submit(self, prompts: list[dict], retain_s: float | None, tier: str = "device") -> Job:
        """Queue a job; prompts: as `prompts.tokenized` gives them. Raises QueueFull."""
        self.check_room()
        job = Job(uuid.uuid4().hex, prompts, len(prompts), tier, retain_s)
        self._jobs[job.job_id] = job
        while len(self._jobs) > MAX_KEPT:
            self._jobs.popitem(last=False)
        self._waiting.append(job)
        jobs.count("submitted")
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return job

    def get(self, job_id: str) -> Job | None:
        """A job that is not too long ago."""
        return self._jobs.get(job_id)

    def newest(self, limit: int) -> list[Job]:
        """The jobs that were submitted last, newest first."""
        return list(itertools.islice(reversed(self._jobs.values()), limit))

    def prompts_of(self, job: Job) -> list[dict]:
        """The prompts of a job that is done. Raises NotKept."""
        if job.state != "done":
            raise NotKept(f"pre-warm job {job.job_id} is {job.state}; pin it once it is done")
        if not job.prompts:
            raise NotKept(
                f"the prompts of pre-warm job {job.job_id} are kept no longer; give them as prompts"
            )
        return [{**prompt, "input_ids": prompt["input_ids"].tolist()} for prompt in job.prompts]

    def cancel(self, job_id: str) -> Job | None:
        """Stop a job after the piece that is being prefilled."""
        job = self._jobs.get(job_id)
        if job is not None and job.state == "waiting":
            self._waiting.remove(job)
        if job is not None and job.state in ("waiting", "running"):
            job.end("cancelled")
        return job

    def stats(self) -> dict[str, int]:
        """What waits, and what was done since the start."""
        return {
            "waiting_jobs": len(self._waiting),
            "prompts": self._counts["prompts"],
            "failed_prompts": self._counts["failed"],
            "pieces": self._counts["pieces"],
            "tokens_prefilled": self._counts["tokens"],
            "piece_tokens": self._pacing.piece_tokens,
        }

    async def _work(self) -> None:
        while self._waiting:
            job = self._waiting.popleft()
            job.state = "running"
            for prompt in job.prompts:
                result = await self._warm(prompt, job)
                if job.state == "cancelled":
                    break
                job.results.append(result)
                self._counts["prompts"] += 1
                self._counts["failed"] += result["error"] is not None
            else:
                job.end("done")
                self._bound_kept_tokens()

    def _bound_kept_tokens(self) -> None:
        ended = [job for job in self._jobs.values() if job.state == "done"]
        num_tokens = sum(job.num_tokens for job in ended)
        for job in ended:
            if num_tokens <= MAX_KEPT_TOKENS:
                return
            num_tokens -= job.num_tokens
            job.prompts = []

    async def _warm(self, prompt: dict, job: Job) -> dict:
        """Prefill one prompt on every data-parallel rank; an error is the prompt's, not the job's."""
        started = time.monotonic()
        result: dict = {"tokens": len(prompt["input_ids"]), "tokens_prefilled": 0, "error": None}
        try:
            for rank, found in enumerate(await self._ask("tiers", prompt)):
                if job.tier == "device" or found["tiers"][0]["backed_up"] < _aligned(self._manager, prompt):
                    await self._prefill(prompt, rank, found["tiers"][0], job, result)
            if job.tier == "host":
                result.update(await self._move_to_host(prompt))
            if job.retain_s is not None:
                result.update(await self._retain(prompt, job))
            result["tiers"] = [reply["tiers"][0] for reply in await self._ask("tiers", prompt)]
        except Exception as error:  # the job goes on; whoever asks reads what happened
            result["error"] = f"{type(error).__name__}: {error}"
        return {**result, "seconds": time.monotonic() - started}

    async def _ask(self, name: str, prompt: dict, **arguments) -> list[dict]:
        keys = as_keys(self._manager, [prompt])
        return await commands.send(self._manager, name, prompts=keys, **arguments)

    async def _move_to_host(self, prompt: dict) -> dict:
        """Have every rank back it up and let the device copy go first; empty if all went well."""
        errors = [reply["error"] for reply in await self._ask("to_host", prompt) if "error" in reply]
        return {"error": errors[0]} if errors else {}

    async def _retain(self, prompt: dict, job: Job) -> dict:
        """Pin the prompt under the job's id; how much of it, on the rank that holds least."""
        order = {"pin_id": job.job_id, "ttl_s": job.retain_s, "hard": False}
        replies = await self._ask("pin", prompt, **order, now_s=time.time())
        for reply in replies:
            if "error" in reply:
                return {"error": reply["error"]}
        return {"tokens_pinned": min(reply["pins"][0]["tokens_pinned"] for reply in replies)}

    async def _prefill(self, prompt: dict, rank: int, tiers: dict, job: Job, result: dict) -> None:
        """Extend what is cached on a rank piece by piece to the whole prompt, and count what was computed."""
        end, num_tokens = tiers["device"] + tiers["host"], len(prompt["input_ids"])
        warmed = 0
        while job.state == "running":
            await self._pacing.until_quiet()
            end = min(num_tokens, end + self._pacing.piece_tokens)
            started = time.monotonic()
            cached = await self._run_piece(prompt, rank, end)
            if cached < warmed - self._pacing.page_tokens:
                raise RuntimeError(
                    f"{warmed - cached} tokens of it were evicted while it was warmed: the cache is full"
                )
            warmed = end
            self._pacing.note_piece(end - cached, time.monotonic() - started)
            result["tokens_prefilled"] += end - cached
            self._counts["pieces"] += 1
            self._counts["tokens"] += end - cached
            if end == num_tokens:
                return

    async def _run_piece(self, prompt: dict, rank: int, end: int) -> int:
        """Prefill the first `end` tokens; returns how many of them were cached."""
        from sglang.srt.managers.io_struct import GenerateReqInput

        cached = 0
        with warm_rid() as rid:
            request = GenerateReqInput(
                **{**prompt, "input_ids": prompt["input_ids"][:end]},
                rid=rid,
                sampling_params={"max_new_tokens": 1, "temperature": 0},
                routed_dp_rank=rank if self._manager.server_args.dp_size > 1 else None,
                log_metrics=False,
            )
            async for answer in self._manager.generate_request(request, None):
                cached = answer["meta_info"]["cached_tokens"]
        return cached


def _aligned(manager, prompt: dict) -> int:
    """The whole pages of a prompt: what is ever kept of it."""
    page_tokens = manager.server_args.page_size or 1
    return len(prompt["input_ids"]) // page_tokens * page_tokens
