"""Checks a launch before any weight is loaded; a mistake is one clear line and exit code 2."""

from __future__ import annotations

import sys
from pathlib import Path

from radiximp.config import ConfigError, PolicyConfig
from radiximp.replay.files import FileError, check_writable
from radiximp.serving import interrupt
from radiximp.serving.tree.strategy import POLICY_NAME

HTTP_SERVER = "sglang.srt.entrypoints.http_server"


def check_server_args(server_args) -> None:
    """Raise ConfigError if the policy's configuration or its companions cannot be served."""
    if not is_ours(server_args):
        return
    config = server_args.radix_eviction_policy_config
    if config is not None and not isinstance(config, dict):
        raise ConfigError(f"--radix-eviction-policy-config: expected a JSON object, got {config!r}")
    try:
        settings = PolicyConfig.from_mapping(config)
        _check_law_path(settings.law_path, server_args)
        for key in ("record_path", "hotspots_file"):
            _check_path(key, getattr(settings, key))
        if settings.load_back:
            _check_host_tier("load_back", server_args)
            if getattr(server_args, "sleep_on_idle", False):
                raise ConfigError(
                    "load_back: not with --sleep-on-idle, which sleeps through the moments it works in"
                )
        if settings.fetch_decision != "stock":
            _check_host_tier("fetch_decision", server_args)
    except ConfigError as error:
        raise ConfigError(f"--radix-eviction-policy-config: {error}") from None
    if server_args.disable_radix_cache:
        raise ConfigError(
            f"--radix-eviction-policy {POLICY_NAME} has nothing to evict with --disable-radix-cache; drop one of them"
        )

    from sglang.srt.environ import envs

    if envs.SGLANG_RUST_SERVER.get():
        raise ConfigError(
            f"--radix-eviction-policy {POLICY_NAME} needs SGLang's Python HTTP server: unset SGLANG_RUST_SERVER, whose "
            "requests carry no arrival time"
        )
    if (getattr(server_args, "tokenizer_worker_num", 1) or 1) > 1:
        raise ConfigError(
            f"--radix-eviction-policy {POLICY_NAME} needs --tokenizer-worker-num 1: further workers do not load "
            "plugins, so requests would carry no arrival time"
        )
    if HTTP_SERVER in sys.modules:
        from radiximp.serving.api.http import add_routes

        add_routes()


def _check_path(key: str, path: str) -> None:
    try:
        if path:
            check_writable(Path(path))
    except FileError as error:
        raise ConfigError(f"{key}: {error}") from None


def _check_host_tier(key: str, server_args) -> None:
    """What moves KV from the host has its say where requests are admitted, on every rank alike."""
    if not getattr(server_args, "enable_hierarchical_cache", False):
        raise ConfigError(f"{key}: needs a host tier; add --enable-hierarchical-cache")
    if (getattr(server_args, "pp_size", 1) or 1) > 1:
        raise ConfigError(f"{key}: not with --pp-size above 1, whose stages would have to decide alike")
    if getattr(server_args, "disaggregation_mode", "null") != "null":
        raise ConfigError(f"{key}: not with --disaggregation-mode, which admits requests in its own way")


def _check_law_path(law_path: str, server_args) -> None:
    if not law_path:
        return
    if (getattr(server_args, "pp_size", 1) or 1) > 1:
        raise ConfigError(
            "law_path: not with --pp-size above 1, whose stages would not start from the same law"
        )
    try:
        check_writable(Path(law_path))
    except FileError:
        raise ConfigError(
            f"law_path: expected a file in a folder that can be written, got {law_path!r}"
        ) from None


def is_ours(server_args) -> bool:
    """Whether the command chose our policy."""
    return (getattr(server_args, "radix_eviction_policy", None) or "").lower() == POLICY_NAME


def check_command_line(server_args, argv) -> None:
    """After the command line is parsed: check it, print one line and exit 2 on a mistake; add our routes, answer ^C."""
    try:
        check_server_args(server_args)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    if is_ours(server_args):
        from radiximp.serving.api.http import add_routes

        add_routes()
        interrupt.answer_in_launcher()
