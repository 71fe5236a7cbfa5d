"""Binds suites over SGLang's kit to every configuration, on our tree core and on the stock one."""

from __future__ import annotations

import unittest

import torch
from sglang.test.kits.unified_radix_cache.config import CONFIGS, config_attrs

from tests.sglang.kit_trees import IMPORTANCE, STOCK_LRU, kit_runs_on


def define(suite, namespace, configs=CONFIGS) -> None:
    """Put `Test<suite>_<configuration>_<policy>` into `namespace`, without what a configuration lacks."""
    for variant in (IMPORTANCE, STOCK_LRU):
        for cfg in configs:
            name = f"Test{suite.__name__}_{cfg.label}_{variant.eviction_policy}"
            attrs = config_attrs(suite, cfg) | {"variant": variant, "__module__": namespace["__name__"]}
            namespace[name] = type(name, (OnVariant, suite, unittest.TestCase), attrs)


class OnVariant:
    """Runs each test of a suite with the kit's caches on `variant`."""

    variant = IMPORTANCE

    def setUp(self):
        self.enterContext(kit_runs_on(self.variant))

    def _init_hicache(self, cache, **kwargs):
        super()._init_hicache(cache, **kwargs)
        if not torch.cuda.is_available():
            # The CPU platform serves dense models, so Mamba's pools still ask CUDA for pinned pages.
            for entry in cache.host_pool_group.entries:
                entry.host_pool.pin_memory = False
