"""From a configuration to the policy it asks for: the one place that names them all."""

from __future__ import annotations

from radiximp.config import PolicyConfig
from radiximp.policy.base import Policy
from radiximp.policy.gittins import GittinsPolicy
from radiximp.policy.lrfu import ImportanceLRFU


def make_policy(config: PolicyConfig) -> Policy:
    """The policy of `--radix-eviction-policy importance` with this configuration."""
    return ImportanceLRFU(config) if config.score == "lrfu" or config.is_lru else GittinsPolicy(config)
