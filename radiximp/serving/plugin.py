"""Entry point that SGLang calls in every process: puts the `importance` policy in place, or refuses.

Nothing here runs per request. With another `--radix-eviction-policy` the hooks find nothing to do.
SGLang logs and swallows what a plugin raises, so `register` names the policy last: a half-placed
plugin leaves a policy whose construction raises, and the server does not start.
"""

from __future__ import annotations

from importlib.metadata import version

SUPPORTED_SGLANG = "0.5.23"


class PluginError(RuntimeError):
    """The plugin cannot do its work in this process; start-up must fail."""


def register() -> None:
    """Install the CPU platform's parts, the tree core, the hooks and the policy name, in this order."""
    try:
        found = version("sglang")
        if found != SUPPORTED_SGLANG:
            raise PluginError(
                f"radiximp supports sglang {SUPPORTED_SGLANG} only, found {found}; install that version"
            )
        from radiximp.serving import cpu, hooks
        from radiximp.serving.tree import backend

        cpu.install()
        backend.register_tree_core()
        hooks.register_hooks()
        backend.register_policy()
    except Exception as error:
        _refuse(error)
        raise


def _refuse(cause: Exception) -> None:
    """Make `--radix-eviction-policy importance` known but unusable, with the cause as its message."""
    from sglang.srt.arg_groups.choices import RADIX_EVICTION_POLICY_CHOICES
    from sglang.srt.mem_cache import utils

    message = f"radiximp could not be put in place: {type(cause).__name__}: {cause}"

    def refuse(**config: object) -> None:
        raise PluginError(message)

    if "importance" not in RADIX_EVICTION_POLICY_CHOICES:
        RADIX_EVICTION_POLICY_CHOICES.append("importance")
    utils._EVICTION_POLICY_FACTORIES["importance"] = refuse
