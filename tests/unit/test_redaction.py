"""Secrets that users really have, in the places where a server's report shows them."""

from __future__ import annotations

import json

import pytest

from radiximp.redaction import REMOVED, is_secret_name, redacted, redacted_text

SECRETS = {
    "api_key": "top-secret-1",
    "admin_api_key": "top-secret-2",
    "hf_token": "hf_abcdefghijklmnop",
    "ssl_keyfile_password": "open sesame",
    "HF_TOKEN": "hf_qrstuvwxyzabcdef",
    "awsSecretAccessKey": "wJalrXUtnFEMI",
    "cache_salt": "tenant-a-salt",
}
KEPT = {
    "max_total_tokens": 8192,
    "tokenizer_path": "/models/llama",
    "max_prefill_tokens": 16384,
    "hit_tokens": {"user": 5},
    "skip_tokenizer_init": False,
    "monkey": "banana",
    "dp_size": 1,
    "policy": "importance",
}


def test_secrets_go_by_name_and_the_rest_stays():
    found = redacted({**SECRETS, **KEPT})
    assert {name: found[name] for name in SECRETS} == dict.fromkeys(SECRETS, REMOVED)
    assert {name: found[name] for name in KEPT} == KEPT


def test_whether_a_secret_is_set_stays():
    assert redacted({"api_key": None, "admin_api_key": "", "auth": True}) == {
        "api_key": None,
        "admin_api_key": "",
        "auth": True,
    }


def test_a_secret_goes_wherever_it_is_repeated():
    report = {
        "server_args": {"api_key": "top-secret-1"},
        "launch_command": "python -m sglang.launch_server --served-model-name x-top-secret-1-y",
        "log": ["warming top-secret-1 up", {"deep": ("top-secret-1",)}],
    }
    assert "top-secret-1" not in json.dumps(redacted(report))


@pytest.mark.parametrize(
    "text, secret",
    [
        ("https://user:hunter22@models.example/llama", "hunter22"),
        ("s3://AKIAIOSFODNN7EXAMPLE:sekrit@bucket/path", "sekrit"),
        ("https://x.example/m?token=abc123&rev=2", "abc123"),
        ("https://x.example/m?rev=2&X-Amz-Signature=deadbeef", "deadbeef"),
        ("https://x.example/m?access_token=abc123#top", "abc123"),
        ("Authorization: Bearer abc.def-123", "abc.def-123"),
        ("launch --api-key abc123 --port 1", "abc123"),
        ("launch --admin-api-key=abc123", "abc123"),
        ("launch --api-key 'abc 123' --port 1", "abc 123"),
        ("HF_TOKEN=abc123 python -m x", "abc123"),
        ("AWS_SECRET_ACCESS_KEY=abc/123", "abc/123"),
        ("/home/me/hf_abcdefghijklmnop/model", "hf_abcdefghijklmnop"),
        ("key sk-proj-abcdefgh12345 here", "sk-proj-abcdefgh12345"),
        ("AKIAIOSFODNN7EXAMPLE", "AKIAIOSFODNN7EXAMPLE"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.sig", "eyJhbGciOiJIUzI1NiJ9"),
    ],
)
def test_secrets_go_by_their_shape(text, secret):
    assert secret not in redacted_text(text) and REMOVED in redacted_text(text)


@pytest.mark.parametrize(
    "text",
    [
        "http://127.0.0.1:30000/metrics",
        "https://models.example/llama?revision=main",
        "--max-total-tokens 8192 --tokenizer-path /models/llama",
        'radiximp_hit_tokens_total{tier="device",caller="user"} 5.0',
        "1,024 tokens in 3 prompts",
    ],
)
def test_what_is_no_secret_stays(text):
    assert redacted_text(text) == text


def test_settings_inside_a_json_text_are_looked_at():
    inner = {"bucket": "kv", "access_key": "abc123", "nested": {"password": "xyz987"}}
    found = redacted({"hicache_storage_backend_extra_config": json.dumps(inner)})
    kept = json.loads(found["hicache_storage_backend_extra_config"])
    assert kept == {"bucket": "kv", "access_key": REMOVED, "nested": {"password": REMOVED}}


def test_a_flags_value_goes_in_a_list_too():
    command = ["launch", "--api-key", "abc123", "--port", "1", "--admin-api-key=abc123"]
    assert redacted(command) == ["launch", "--api-key", REMOVED, "--port", "1", f"--admin-api-key={REMOVED}"]


def test_known_secrets_go_without_a_name():
    assert redacted({"note": "we use pass-9876 here"}, ["pass-9876"]) == {"note": f"we use {REMOVED} here"}


def test_names_are_read_word_by_word():
    assert [is_secret_name(name) for name in ("apiKey", "API_KEY", "x-auth-token", "tokens", "keyboard", "tokenizer")] == [
        True, True, True, False, False, False,
    ]  # fmt: skip
