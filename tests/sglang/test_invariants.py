"""Whatever is asked of the importance tree, its own checks and SGLang's hold after every step.

The policy trims leaves, remembers ghosts and honours pins, so nothing can be compared with a
stock tree. What must hold instead: `sanity_check` (SGLang's invariants, the order of the leaf index, the
pin budget), and that every slot of every pool is either free, once, or held by one node.
"""

from __future__ import annotations

import random

import pytest

from tests.sglang.driver import Driver, case_id, cases, make_log, open_drivers
from tests.sglang.kit_trees import SMALL_CUTS

NUM_STEPS = 150


class AnnotatingDriver(Driver):
    """Before every operation of the log, now and then annotates or asks something."""

    def annotate(self, rng: random.Random, prompt) -> None:
        core, key = self.cache.tree_core, self._key(prompt)
        action = rng.choice(("observe", "pin", "unpin", "ask", "nothing", "nothing"))
        if action == "observe":
            num_pages = len(key) // self.cfg.page_size
            core.observe(key, [rng.expovariate(1) for _ in range(num_pages)])
        elif action == "pin":
            core.pin(key, ttl_s=rng.choice((None, rng.uniform(1, 30))))
        elif action == "unpin":
            core.unpin(key)
        elif action == "ask":
            core.describe(key)
            core.hotspots()
            core.dry_run(rng.randrange(self.cfg.kv_size))
            core.stats()


@pytest.mark.parametrize(("cfg", "host"), cases(), ids=case_id)
def test_invariants_hold_after_every_step(cfg, host):
    seed = cfg.page_size + 1
    rng = random.Random(seed)
    with open_drivers(cfg, host, [SMALL_CUTS], AnnotatingDriver) as (driver,):
        for name, arguments in make_log(cfg, seed, NUM_STEPS, has_host=host is not None):
            driver.annotate(rng, arguments["prompt"])
            driver.cache.sanity_check()
            driver.apply(name, arguments)
            driver.cache.sanity_check()
            driver.check_conservation()
