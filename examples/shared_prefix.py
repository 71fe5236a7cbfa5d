"""Ask a running server twice with one system prompt and see what the cache did.

    python examples/shared_prefix.py [http://127.0.0.1:30000]
"""

from __future__ import annotations

import json
import sys
import urllib.request

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:30000"
SYSTEM = "You are a travel agent. Answer in one short sentence. " * 20


def call(path: str, body: dict | None = None) -> dict:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(URL + path, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as response:
        return json.load(response)


def cached_tokens(prompt: str) -> int:
    body = {"text": SYSTEM + prompt, "sampling_params": {"temperature": 0, "max_new_tokens": 4}}
    return call("/generate", body)["meta_info"]["cached_tokens"]


print("first question:  cached tokens", cached_tokens("Where is the Louvre?"))
print("second question: cached tokens", cached_tokens("Where is the Prado?"))
rank = call("/radiximp/stats")["ranks"][0]
print("policy", rank["policy"], "on", rank["tree_core"], "nodes", rank["nodes"], "evictions", rank["evictions"])
