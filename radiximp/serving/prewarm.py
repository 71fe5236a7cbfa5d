"""Pre-warm jobs in the HTTP process: known prompts are prefilled, one at a time, when no user's request is waiting.

The queue is bounded in jobs and tokens, and an ended job keeps its results only, until newer ones push it out. The prompts run as requests of
their own, so all that holds for requests holds for them: they are admitted, evicted and cached as any.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import OrderedDict, deque
from dataclasses import dataclass, field

from radiximp.serving import commands

MAX_WAITING = 64
MAX_WAITING_TOKENS = 1 << 21
# Ended jobs, without their prompts, that can still be asked for.
MAX_KEPT = 1024
RETRY_AFTER_S = 5
_RID = "radiximp-prewarm-"
# How often an idle moment is looked for; a prompt that is being prefilled is not interrupted.
_LOOK_EVERY_S = 0.02


class QueueFull(RuntimeError):
    """As many jobs wait as may."""


@dataclass(eq=False)
class Job:
    """One call: its prompts, until it ended, and what became of each."""

    job_id: str
    prompts: list[dict]
    num_prompts: int
    retain_s: float | None
    state: str = "waiting"  # running, done, cancelled
    results: list[dict] = field(default_factory=list)

    def describe(self) -> dict:
        """As `GET /radiximp/prewarm/{id}` answers."""
        return {"id": self.job_id, "state": self.state, "prompts": self.num_prompts, "results": self.results}

    def end(self, state: str) -> None:
        """Nothing more comes of it."""
        self.state = state
        self.prompts = []


class Prewarmer:
    """Owned by the HTTP process's event loop."""

    def __init__(self, tokenizer_manager) -> None:
        self._manager = tokenizer_manager
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._waiting: deque[Job] = deque()
        self._worker: asyncio.Task | None = None

    def submit(self, prompts: list[dict], retain_s: float | None) -> Job:
        """Queue a job. Raises QueueFull."""
        num_tokens = sum(len(prompt["input_ids"]) for job in self._waiting for prompt in job.prompts)
        if len(self._waiting) >= MAX_WAITING or num_tokens > MAX_WAITING_TOKENS:
            raise QueueFull(
                f"{len(self._waiting)} pre-warm jobs with {num_tokens} tokens are waiting already"
            )
        job = Job(uuid.uuid4().hex, prompts, len(prompts), retain_s)
        self._jobs[job.job_id] = job
        while len(self._jobs) > MAX_KEPT:
            self._jobs.popitem(last=False)
        self._waiting.append(job)
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return job

    def get(self, job_id: str) -> Job | None:
        """A job that is not too long ago."""
        return self._jobs.get(job_id)

    def cancel(self, job_id: str) -> Job | None:
        """Stop a job after the prompt that is being prefilled."""
        job = self._jobs.get(job_id)
        if job is not None and job.state == "waiting":
            self._waiting.remove(job)
        if job is not None and job.state in ("waiting", "running"):
            job.end("cancelled")
        return job

    async def _work(self) -> None:
        while self._waiting:
            job = self._waiting.popleft()
            job.state = "running"
            for prompt in job.prompts:
                await self._until_idle()
                if job.state == "cancelled":
                    break
                job.results.append(await self._warm(prompt, job))
            else:
                job.end("done")

    async def _until_idle(self) -> None:
        while any(not str(rid).startswith(_RID) for rid in self._manager.rid_to_state):
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _warm(self, prompt: dict, job: Job) -> dict:
        """Prefill one prompt on every data-parallel rank; an error is the prompt's, not the job's."""
        started = time.monotonic()
        result: dict = {"tokens": len(prompt["input_ids"]), "tokens_prefilled": 0, "error": None}
        try:
            for rank in range(self._manager.server_args.dp_size):
                result["tokens_prefilled"] += await self._prefill(prompt, rank)
            if job.retain_s is not None:
                result.update(await self._retain(prompt, job))
            replies = await commands.send(self._manager, "tiers", prompts=[prompt])
            result["tiers"] = [reply["tiers"][0] for reply in replies]
        except Exception as error:  # the job goes on; whoever asks reads what happened
            result["error"] = f"{type(error).__name__}: {error}"
        return {**result, "seconds": time.monotonic() - started}

    async def _retain(self, prompt: dict, job: Job) -> dict:
        """Pin the prompt under the job's id; how much of it, on the rank that holds least."""
        order = {"prompts": [prompt], "pin_id": job.job_id, "ttl_s": job.retain_s, "hard": False}
        replies = await commands.send(self._manager, "pin", **order, now_s=time.time())
        for reply in replies:
            if "error" in reply:
                return {"error": reply["error"]}
        return {"tokens_pinned": min(reply["pins"][0]["tokens_pinned"] for reply in replies)}

    async def _prefill(self, prompt: dict, rank: int) -> int:
        """Tokens that had to be computed."""
        from sglang.srt.managers.io_struct import GenerateReqInput

        request = GenerateReqInput(
            rid=f"{_RID}{uuid.uuid4().hex}",
            sampling_params={"max_new_tokens": 1, "temperature": 0},
            routed_dp_rank=rank if self._manager.server_args.dp_size > 1 else None,
            **prompt,
        )
        cached = 0
        async for answer in self._manager.generate_request(request, None):
            cached = answer["meta_info"]["cached_tokens"]
        return len(prompt["input_ids"]) - cached
