"""The places where the plugin joins SGLang's flow, each as one hook and no larger than it must be.

Every hook checks that the `importance` policy is the one in use and otherwise returns at once.
"""

from __future__ import annotations

from sglang.srt.environ import envs
from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from sglang.srt.runtime_context import get_server_args
from sglang.srt.utils.auth import AuthDecision

from radiximp.serving import attention_tap, launch, requests
from radiximp.serving.api import background, hints, page
from radiximp.serving.fetch.hooks import fetch_hooks, stream_of
from radiximp.serving.fetch.load_back import consumer_of
from radiximp.serving.metrics import jobs, reporting
from radiximp.serving.tree import namespaces
from radiximp.serving.tree.backend import is_ours, with_tree_core
from radiximp.serving.tree.strategy import POLICY_NAME


def register_hooks() -> None:
    """Register all hooks; SGLang applies them right after the plugins have run."""
    cache = "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache"
    scheduler = "sglang.srt.managers.scheduler.Scheduler"
    manager = "sglang.srt.managers.tokenizer_manager.TokenizerManager"
    checker = "sglang.srt.managers.scheduler_components.invariant_checker.SchedulerInvariantChecker"
    weights = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"
    runner = "sglang.srt.model_executor.model_runner.ModelRunner"
    streamer = "sglang.srt.managers.scheduler_components.output_streamer.SchedulerOutputStreamer"
    auth = "sglang.srt.utils.auth"
    time_stats = "sglang.srt.observability.req_time_stats.ReqTimeStatsBase"
    for target, hook, kind in (
        (f"{cache}.__init__", _choose_tree_core, HookType.BEFORE),
        (f"{cache}.evict_for_alloc", _state_shortfall, HookType.AROUND),
        (f"{cache}.checkpoint_into_tree", _name_request, HookType.AROUND),
        (f"{cache}.ready_to_load_host_cache", _wait_for_load_back, HookType.AFTER),
        ("sglang.srt.mem_cache.registry.create_tree_cache", _check_tree_cache, HookType.AFTER),
        ("sglang.srt.server_args.prepare_server_args", launch.check_command_line, HookType.AFTER),
        ("sglang.srt.server_args.ServerArgs.resolve_once", launch.check_server_args, HookType.BEFORE),
        ("sglang.srt.managers.schedule_batch.Req.__init__", namespaces.separate_lora, HookType.AFTER),
        (f"{time_stats}.__getstate__", requests.send_arrival, HookType.AFTER),
        (f"{runner}.init_attention_backends", _tap_attention, HookType.AFTER),
        (f"{scheduler}.run_batch", _watch_prompts, HookType.BEFORE),
        (f"{scheduler}.run_batch", _watch_decode_steps, HookType.AFTER),
        (f"{scheduler}.process_batch_result", _harvest, HookType.AFTER),
        (f"{scheduler}.process_batch_result", _run_prefetches, HookType.AFTER),
        (f"{manager}._init_req_state", _check_request, HookType.BEFORE),
        (f"{scheduler}.handle_generate_request", requests.receive_arrival, HookType.BEFORE),
        (f"{scheduler}.handle_embedding_request", requests.receive_arrival, HookType.BEFORE),
        (f"{weights}.flush_cache_after_weight_update", _forget, HookType.BEFORE),
        (f"{checker}._check_tree_cache", _check_full_attention_tree, HookType.AFTER),
        (f"{scheduler}.get_internal_state", requests.add_reply, HookType.AFTER),
        (f"{streamer}.get_cached_tokens_details", requests.complete_details, HookType.AROUND),
        (f"{scheduler}.init_metrics_reporter", reporting.start, HookType.AFTER),
        (f"{scheduler}.process_batch_result", reporting.after_batch, HookType.AFTER),
        (f"{manager}.init_metric_collector_watchdog", jobs.start, HookType.AFTER),
        (f"{scheduler}.on_idle", reporting.when_idle, HookType.AFTER),
        (f"{manager}.sigterm_watchdog", background.save_before_exit, HookType.AROUND),
        (f"{auth}.decide_request_auth", _open_page, HookType.AROUND),
        *fetch_hooks(),
    ):
        HookRegistry.register(target, hook, kind)


def _choose_tree_core(cache, params, *args, **kwargs):
    if is_ours(params):
        params = with_tree_core(params)
        namespaces.activate()
    return (cache, params, *args), kwargs


def _state_shortfall(evict_for_alloc, cache, params, **kwargs):
    # SGLang then asks the walk for "as much as there is" and stops it when the allocation fits;
    # the tree core must know what is really short to cut a long leaf rather than drop it.
    core = cache.tree_core
    if cache.disable or not hasattr(core, "shortfall_tokens"):
        return evict_for_alloc(cache, params, **kwargs)
    core.shortfall_tokens = params.num_tokens
    try:
        return evict_for_alloc(cache, params, **kwargs)
    finally:
        core.shortfall_tokens = 0


def _name_request(checkpoint_into_tree, cache, req, *, up_to, **kwargs):
    uses = getattr(cache.tree_core, "uses", None)
    if uses is None:
        return checkpoint_into_tree(cache, req, up_to=up_to, **kwargs)
    with uses.on_behalf_of(req):
        result = checkpoint_into_tree(cache, req, up_to=up_to, **kwargs)
    cache.tree_core.hints.apply(req, up_to)
    requests.note_end(cache.tree_core, req)
    return result


def _wait_for_load_back(index, cache):
    return index if getattr(cache.tree_core, "load_back", None) is None else consumer_of(index, cache)


def _tap_attention(result, runner, *args, **kwargs) -> None:
    # The draft model of speculative decoding is not what the cache is for.
    if launch.is_ours(runner.server_args) and not runner.is_draft_worker:
        attention_tap.install(runner)


def _watch_prompts(scheduler, batch, *args, **kwargs) -> None:
    if attention_tap.current is not None:
        attention_tap.current.begin(batch, stream_of(scheduler))


def _watch_decode_steps(result, scheduler, batch, *args, **kwargs) -> None:
    if attention_tap.current is not None:
        attention_tap.current.launched(batch, stream_of(scheduler))


def _harvest(result, scheduler, batch, *args, **kwargs) -> None:
    # By now each prompt that the batch completed is in the tree.
    if attention_tap.current is not None:
        from radiximp.serving.attention_tap.harvest import harvest

        harvest(scheduler.tree_cache.tree_core, attention_tap.current, batch.reqs)


def _run_prefetches(result, scheduler, *args, **kwargs) -> None:
    core = getattr(scheduler.tree_cache, "tree_core", None)
    if hasattr(core, "hints"):
        core.hints.run_prefetches()


def _check_request(tokenizer_manager, obj, *args, **kwargs) -> None:
    # The request is normalised by now and has not begun.
    if launch.is_ours(tokenizer_manager.server_args):
        requests.check_rid(obj)
        hints.check(tokenizer_manager, obj)


def _open_page(decide_request_auth, *, method, path, **kwargs):
    # A browser sends no key for a page.
    if page.is_open(method, path):
        return AuthDecision(allowed=True)
    return decide_request_auth(method=method, path=path, **kwargs)


def _forget(updater, *args, **kwargs) -> None:
    # Other weights answer otherwise: what was learned of reuse goes, also where the cache is not flushed.
    core = getattr(updater.scheduler.tree_cache, "tree_core", None)
    if hasattr(core, "forget"):
        core.forget()


def _check_full_attention_tree(result, checker) -> None:
    # SGLang runs its tree check (SGLANG_ENABLE_TREE_CACHE_SANITY_CHECK) on SWA and Mamba models only.
    cache = checker.tree_cache
    if envs.SGLANG_ENABLE_TREE_CACHE_SANITY_CHECK.get() and hasattr(cache, "tree_core"):
        if hasattr(cache.tree_core, "history_of"):
            cache.sanity_check()


def _check_tree_cache(cache, ctx) -> None:
    from radiximp.serving.fetch import costs
    from radiximp.serving.tree.core import ImportanceTreeCore

    if ctx.params.eviction_policy.lower() != POLICY_NAME:
        return
    core = getattr(cache, "tree_core", None)
    if not isinstance(core, ImportanceTreeCore):
        raise ValueError(
            f"--radix-eviction-policy {POLICY_NAME} needs the unified radix cache with radiximp's tree core, but "
            f"{type(cache).__name__} runs {type(core).__name__}; drop the flag or the option that chose that cache"
        )
    controller = cache.cache_controller
    host_tokens = 0 if controller is None else controller.mem_pool_host.size
    layers = () if attention_tap.current is None else attention_tap.current.layer_ids
    core.start_load_back(cache)
    core.start_serving(get_server_args().tool_call_parser, host_tokens, layers)
    costs.install(cache)
