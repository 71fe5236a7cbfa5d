"""Three agents with long instructions: the time to their first token, cold and after their prompts were pre-warmed.

    python examples/warm_agents.py [http://127.0.0.1:30000 [API_KEY]]
"""

from __future__ import annotations

import statistics
import sys
import time

import httpx

from radiximp import Client

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:30000"
KEY = sys.argv[2] if len(sys.argv) > 2 else None
ROLES = ("a planner who cuts work into steps", "a searcher who finds sources", "a writer who sums up")


def agents(team: str) -> list[dict]:
    """What each agent of a team is told before any question."""
    rules = " ".join(f"Rule {n} of the {team} team: be brief and say what you do not know." for n in range(40))
    return [{"messages": [{"role": "system", "content": f"You are {role}. {rules}"}]} for role in ROLES]


def first_token_s(agent: dict) -> float:
    """Seconds until the agent begins to answer."""
    messages = [*agent["messages"], {"role": "user", "content": "Where do we start?"}]
    body = {"model": "default", "messages": messages, "max_tokens": 1}
    headers = {"Authorization": f"Bearer {KEY}"} if KEY else {}
    started = time.perf_counter()
    httpx.post(f"{URL}/v1/chat/completions", json=body, headers=headers, timeout=300).raise_for_status()
    return time.perf_counter() - started


# The names keep two runs against one server, and its cache, apart.
stamp = time.time_ns()
cold = [first_token_s(agent) for agent in agents(f"red {stamp}")]
with Client(URL, KEY) as client:
    warmed = agents(f"blue {stamp}")
    job = client.wait_for(client.prewarm(warmed, retain_s=600)["id"])
    print("pre-warmed", [result["tokens_prefilled"] for result in job["results"]], "tokens")
warm = [first_token_s(agent) for agent in warmed]
print(f"time to first token, median of three agents: cold {statistics.median(cold):.2f} s, "
      f"pre-warmed {statistics.median(warm):.2f} s")
