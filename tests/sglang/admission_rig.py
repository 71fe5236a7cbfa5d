"""Requests through SGLang's own admission over real pools of both tiers; what they read is checked to be their KV."""

from __future__ import annotations

from array import array
from types import SimpleNamespace

import torch
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.managers.schedule_policy import PrefillAdder
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams
from sglang.srt.sampling.sampling_params import SamplingParams

from radiximp.cost.calibration import PrefillBatch
from radiximp.cost.live import HOST
from radiximp.serving.fetch import costs, failure
from tests.sglang.builders import key_of
from tests.sglang.kv_rig import KvRig, prefix_marks


class AdmissionRig(KvRig):
    """A rig whose tree decides by `fetch_decision`, after the samples of a server with known costs."""

    def __init__(
        self, fetch_decision: str = "cost", device_tokens: int = 1024, page_size: int = 16, **rig
    ) -> None:
        rig.setdefault("write_policy", "write_through")
        config = {"fetch_decision": fetch_decision}
        super().__init__(device_tokens, page_size=page_size, config=config, **rig)
        costs.install(self.cache)
        self.fetch = self.core.fetch_costs
        self.num_requests = 0
        self.scheduler = SimpleNamespace(tree_cache=self.cache, waiting_queue=[], chunked_req=None)

    def teach(self, latency_s: float, s_per_token: float, prefill_tokens_per_s: float) -> None:
        costs = self.fetch.costs
        for num_tokens in (64, 256, 1024, 4096) * 3:
            costs.note_transfer(HOST, num_tokens, latency_s + s_per_token * num_tokens)
            costs.prefill.note(PrefillBatch.of([(num_tokens, 0)]), num_tokens / prefill_tokens_per_s)

    def request(self, tokens) -> Req:
        """A request as it stands in the queue."""
        self.num_requests += 1
        sampling = SamplingParams(max_new_tokens=1)
        sampling.normalize(None)
        return Req(f"r{self.num_requests}", "", array("q", tokens), sampling)

    def admit(self, *requests: Req) -> PrefillAdder:
        """One pass over these requests: matched, decided, admitted; their loads are not started yet."""
        adder = PrefillAdder(self.page_size, self.cache, self.allocator, None, 1.0, 1 << 20, None)
        for request in requests:
            request.init_next_round_input(self.cache)
            adder.add_one_req(request, has_chunked_req=False, truncation_align_size=None)
        return adder

    def run_pass(self) -> list[Req] | None:
        """A scheduler's pass over `scheduler.waiting_queue`; who was admitted, None where their copies were undone."""
        running = SimpleNamespace(reqs=[])

        def get_new_batch(scheduler, running_batch):
            adder = self.admit(*scheduler.waiting_queue)
            scheduler.waiting_queue = [r for r in scheduler.waiting_queue if r not in adder.can_run_list]
            self.cache.ready_to_load_host_cache()
            return adder.can_run_list, running_batch

        batch, running_after = failure.get_batch(get_new_batch, self.scheduler, running_batch=running)
        assert running_after is running
        self.drain()
        return batch

    def finish(self, request: Req) -> int:
        """Prefill an admitted request whose loads were started, insert it, and end it. Returns its cached tokens."""
        tokens = list(request.origin_input_ids)
        marks = prefix_marks(tokens)
        slots = self.cache.path_device_indices(request.last_node)
        assert len(slots) == request.prefix_len
        assert torch.equal(self.read(slots), marks[: len(slots)]), "the cached prefix is not this prompt's KV"
        num_total = self.align(len(tokens))
        num_new = num_total - len(slots)
        short = num_new - self.allocator.available_size()
        if short > 0:
            self.cache.evict_for_alloc(EvictParams(num_tokens=short))
        if num_new:
            fresh = self.allocator.alloc(num_new)
            self.write(fresh, marks[len(slots) : num_total])
            slots = torch.cat([slots, fresh])
        self.cache.insert(InsertParams(key=key_of(tokens), value=slots, prev_prefix_len=request.prefix_len))
        self.cache.unlock(request.lock)
        request.lock = None
        self.drain()
        return request.prefix_len

    def serve(self, tokens) -> Req:
        """One request alone, start to end."""
        request = self.request(tokens)
        adder = self.admit(request)
        assert adder.can_run_list == [request]
        self.cache.ready_to_load_host_cache()
        self.drain()
        self.finish(request)
        return request

    def demote(self, tokens) -> None:
        """Have a prompt on the host alone."""
        for _ in range(3):  # write_through_selective backs up what comes again
            self.serve([*tokens, 7])
        self.cache.evict(EvictParams(num_tokens=self.device_tokens))
        self.drain()
        request = self.request([*tokens, 7])
        request.init_next_round_input(self.cache)
        found = request.prefix_len, request.host_hit_length
        assert found == (0, len(tokens)), found

    def ask_storage(self, request: Req) -> None:
        """What receiving a request does: its prefetch is under way if it is wanted."""
        request.init_next_round_input(self.cache)
        found = request.prefix_len + request.host_hit_length
        anchor = request.last_host_node
        self.cache.prefetch_from_storage(
            request.cache_request_handle,
            anchor,
            request.full_untruncated_fill_ids[found:-1],
            self.cache.get_last_hash_value(anchor),
            None,
            matched_prefix_tokens=list(request.full_untruncated_fill_ids[:found]),
        )

    def has_storage_done(self, request: Req) -> bool:
        """Whether the scheduler would admit the request now."""
        self.drain()
        return self.cache.check_prefetch_progress(request.cache_request_handle)

    def has_settled(self) -> bool:
        """Whether the threads of the storage are done and gave all host memory back."""
        self.drain()
        pool = self.cache.cache_controller.mem_pool_host
        return not self.cache.ongoing_backup and self.num_host_tokens() + pool.available_size() == pool.size

    def num_host_tokens(self) -> int:
        """Tokens that nodes hold on the host."""
        return sum(
            len(node.key)
            for node in self.core._node_arena.values()
            if node.backuped and node is not self.core.root_node
        )

    def check_idle(self) -> None:
        """Nothing is locked, in flight or lost, on either tier."""
        self.check()
        assert not self.cache.ongoing_load_back
        assert not self.cache.cache_controller.load_queue
        assert not self.cache.cache_controller.ack_load_queue
        assert self.core.protected_size() == 0
        for node in self.core._node_arena.values():
            if node is not self.core.root_node:
                assert not any(data.lock_ref or data.host_lock_ref for data in node.component_data)
