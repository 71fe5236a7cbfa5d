"""Registers the tree core and the policy name with SGLang, and picks them when the flag asks for them."""

from __future__ import annotations

import dataclasses

from sglang.srt.arg_groups.choices import RADIX_EVICTION_POLICY_CHOICES, add_radix_eviction_policy_choices
from sglang.srt.mem_cache import utils
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_cache.tree_core_registry import (
    get_tree_core_factory,
    register_tree_core_backend,
)

from radiximp.serving.tree.strategy import POLICY_NAME, ImportanceStrategy

TREE_CORE_NAME = "radiximp"


def register_tree_core() -> None:
    """Name our tree core in SGLang's registry; imported only when a cache asks for it."""

    def build(params, components):
        from radiximp.serving.tree.core import ImportanceTreeCore
        from radiximp.serving.tree.recording_core import RecordingTreeCore

        is_recorded = bool((params.eviction_policy_config or {}).get("record_path"))
        return (RecordingTreeCore if is_recorded else ImportanceTreeCore)(params, components)

    if get_tree_core_factory(TREE_CORE_NAME) is None:
        register_tree_core_backend(TREE_CORE_NAME, build)


def register_policy() -> None:
    """Make the policy a choice of the flag and give SGLang its strategy."""
    if POLICY_NAME not in RADIX_EVICTION_POLICY_CHOICES:
        add_radix_eviction_policy_choices([POLICY_NAME])
    if POLICY_NAME not in utils._EVICTION_POLICY_FACTORIES:
        register = getattr(utils, "register_eviction_policy", None)  # patch 0001, where applied
        if register is not None:
            register(POLICY_NAME, ImportanceStrategy)
        else:
            utils._EVICTION_POLICY_FACTORIES[POLICY_NAME] = ImportanceStrategy


def is_ours(params: CacheInitParams) -> bool:
    """Whether a cache built from `params` must run on our tree core."""
    return params.eviction_policy.lower() == POLICY_NAME and not params.disable


def with_tree_core(params: CacheInitParams) -> CacheInitParams:
    """`params` with our tree core and full-attention component, whatever the environment says.

    Raises ValueError if somebody else replaces the full-attention component too.
    """
    from radiximp.serving.tree.full_component import IndexedFullComponent

    overrides = dict(params.component_registry_override or {})
    other = overrides.get(ComponentType.FULL, IndexedFullComponent)
    if other is not IndexedFullComponent:
        raise ValueError(
            f"--radix-eviction-policy {POLICY_NAME} replaces the full-attention component, and so does "
            f"{other.__module__}.{other.__qualname__}; use one of them"
        )
    overrides[ComponentType.FULL] = IndexedFullComponent
    return dataclasses.replace(
        params, tree_core_backend=TREE_CORE_NAME, component_registry_override=overrides
    )
