"""Moves prefixes between the tiers on somebody's order: backed up to the host, or loaded to the device.

Called by the scheduler of every rank at the same step with the same prefix, so all ranks do the same. Copies are
SGLang's own; only when and what is ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang.srt.mem_cache.unified_cache.components import BASE_COMPONENT_TYPE

from radiximp.serving.fetch.failure import start_own_loads

if TYPE_CHECKING:
    from sglang.srt.mem_cache.radix_cache import RadixKey
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

    from radiximp.serving.tree.core import ImportanceTreeCore


class NoHostTier(RuntimeError):
    """Nothing stays on this server's host; the message says why."""


def cache_of(core: ImportanceTreeCore) -> UnifiedRadixCache:
    """The cache that the tree core works for."""
    return core.components_by_type[BASE_COMPONENT_TYPE].cache


def tokens_by_tier(core: ImportanceTreeCore, key: RadixKey) -> dict[str, int]:
    """Tokens of a prefix on the device, only on the host, and with a copy on the host; changes nothing."""
    nodes = core.describe(key)
    return {
        "device": sum(node["tokens"] for node in nodes if node["is_on_device"]),
        "host": sum(node["tokens"] for node in nodes if not node["is_on_device"]),
        "backed_up": sum(node["tokens"] for node in nodes if node["is_on_host"]),
    }


def load(core: ImportanceTreeCore, key: RadixKey, max_tokens: int) -> int | None:
    """Load what of `key` is only on the host to the device, and wait until it is there; returns the tokens loaded.

    None where more than `max_tokens` would be needed, or there is no room. The scheduler waits (milliseconds for some
    thousand tokens): a batch that begins next finds the prefix whole. No copy from the host may be in preparation.
    """
    cache, path = cache_of(core), [node for node, _, _ in core._walk(key)]
    num_tokens = sum(len(node.key) for node in path if node.evicted)
    if not num_tokens or cache.cache_controller is None:
        return 0
    if num_tokens > max_tokens or not cache.has_free_load_back_slot() or not cache.load_back(path[-1].id):
        return None
    if not start_own_loads(cache):
        return None
    cache.cache_controller.ack_load_queue[-1].finish_event.synchronize()
    return num_tokens


def move_to_host(core: ImportanceTreeCore, key: RadixKey) -> int:
    """Back the device prefix of `key` up to the host and let its own tail go first from the device.

    Returns the tokens that go first. Under `write_back` SGLang copies when the device copy goes, which now is soon;
    otherwise the copies are queued here, as many as the host holds. Raises NoHostTier.
    """
    cache = cache_of(core)
    if cache.cache_controller is None or core.is_host_memory_buffer_only or cache.linker is not None:
        raise NoHostTier("tier host needs a host tier that keeps prefixes (--enable-hierarchical-cache)")
    nodes = [node for node, _, _ in core._walk(key) if not node.evicted]
    if nodes and not core.is_write_back:
        if any(not node.backuped and node.write_through_pending_id is None for node in nodes):
            cache._apply_cache_action(core.build_backup_kv_action(nodes[-1].id))
    return core.let_go_first(key)
