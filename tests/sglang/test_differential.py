"""In its LRU limit the importance tree is SGLang's LRU tree: same results, frees, order and events.

One seeded log of operations drives two caches in step. After every operation both must have returned
the same, freed the same slots into the same free lists, hold the same nodes in the same recency order,
have published the same KV events, and pass `sanity_check`.
"""

from __future__ import annotations

import pytest
from sglang.test.kits.unified_radix_cache.config import CONFIGS, CacheConfig

from tests.sglang.driver import HOST_TIERS, case_id, cases, make_log, open_drivers
from tests.sglang.kit_trees import IMPORTANCE, LRU_LIMIT, STOCK_FIFO, STOCK_LRU, Variant

NUM_STEPS = 200


def run(cfg: CacheConfig, host: str | None, variants: tuple[Variant, Variant], seed: int, num_steps: int):
    """Drive two trees with one log; AssertionError names the step at which they part."""
    with open_drivers(cfg, host, variants) as drivers:
        for step, (name, arguments) in enumerate(make_log(cfg, seed, num_steps, has_host=host is not None)):
            where = f"{cfg.label}, host tier {host}, seed {seed}, step {step} ({name})"
            outcomes = [driver.apply(name, arguments) for driver in drivers]
            assert outcomes[0] == outcomes[1], f"{where}: results differ"
            for driver in drivers:
                driver.cache.sanity_check()
            states = [driver.state() for driver in drivers]
            for part in states[0]:
                assert states[0][part] == states[1][part], f"{where}: {part} differ"


@pytest.mark.parametrize(("cfg", "host"), cases(), ids=case_id)
def test_lru_limit_equals_stock_lru(cfg, host):
    run(cfg, host, (STOCK_LRU, LRU_LIMIT), seed=cfg.page_size, num_steps=NUM_STEPS)


@pytest.mark.parametrize("other", [STOCK_FIFO, IMPORTANCE], ids=lambda variant: variant.name)
@pytest.mark.parametrize("host", HOST_TIERS, ids=case_id)
def test_the_comparison_can_fail(host, other):
    with pytest.raises(AssertionError, match="seed 0, step .* differ"):
        run(CONFIGS[0], host, (STOCK_LRU, other), seed=0, num_steps=NUM_STEPS)
