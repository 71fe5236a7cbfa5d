"""The `/radiximp/` calls under stress and misuse: tiers, hints, limits, fuzz, and CASES 4, 5, 6 and 10 on a running server."""

from __future__ import annotations

import itertools
import json
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import psutil
import pytest
import schemathesis
from fastapi.openapi.utils import get_openapi
from hypothesis import HealthCheck, settings

from radiximp.serving.api import bodies, http
from tests.server.calls import fresh, generate, pin, prewarm
from tests.server.server import Server, launch

POOL_TOKENS = 4096
FLAGS = [
    *("--radix-eviction-policy", "importance", "--max-total-tokens", str(POOL_TOKENS)),
    *("--admin-api-key", "secret", "--enable-cache-report", "--hicache-ratio", "1.2"),
    *("--radix-eviction-policy-config", '{"hotspot_queries": 1}'),
]
ADMIN = {"Authorization": "Bearer secret"}


@pytest.fixture(scope="module")
def server():
    with launch(FLAGS, hierarchical_cache=True) as server:
        yield server


@pytest.fixture(scope="module")
def api(server: Server):
    with httpx.Client(base_url=server.url, headers=ADMIN, timeout=60) as client:
        yield client


@pytest.fixture
def empty(api):
    """The calls of a server whose cache is empty."""
    api.post("/flush_cache", params={"timeout": 60}).raise_for_status()
    return api


def stats(api) -> dict:
    return api.get("/radiximp/stats").raise_for_status().json()["ranks"][0]


# ---- warm traffic, tiers, pins of a job ----


def test_a_prewarm_is_neither_a_use_nor_a_hit_and_runs_in_pieces(empty):
    before, ids = stats(empty), fresh(400)
    pieces = empty.get("/radiximp/stats").json()["prewarm"]["pieces"]
    result = prewarm(empty, ids)
    assert result["tokens_prefilled"] == result["tokens"] == 400 and result["error"] is None
    assert result["tiers"][0]["device"] == 400
    after = stats(empty)
    assert after["warm_requests"] > before["warm_requests"]
    assert empty.get("/radiximp/stats").json()["prewarm"]["pieces"] > pieces + 1
    for name in ("uses", "guard", "reuse_classes", "importance"):
        assert after[name] == before[name], name
    again = prewarm(empty, ids)
    assert again["tokens_prefilled"] <= 1
    assert generate(empty, ids)["cached_tokens"] == 399


def test_tier_host_is_backed_up_and_leaves_the_device_first(empty):
    other, ids = fresh(300), fresh(600)
    generate(empty, other)
    result = prewarm(empty, ids, tier="host")
    assert result["tiers"][0] == {"device": 600, "host": 0, "backed_up": 600}
    generate(empty, fresh(POOL_TOKENS - 700))
    assert generate(empty, other)["cached_tokens"] == 299, "what was older was to stay on the device"
    details = generate(empty, ids)["cached_tokens_details"]
    # Of what goes first, only as much went as was short.
    assert details["host"] >= 200 and details["host"] + details["device"] == 599, details


def test_a_prewarm_job_is_pinned_by_its_id(empty):
    result = prewarm(empty, fresh(200), cache_salt="a")
    made = empty.post("/radiximp/pins", json={"prewarm_id": result["id"], "ttl_s": 60})
    assert made.status_code == 201, made.text
    assert (made.json()["tokens_requested"], made.json()["tokens_pinned"]) == (200, 200)
    unknown = empty.post("/radiximp/pins", json={"prewarm_id": "nobody"})
    assert unknown.status_code == 404 and "no pre-warm job 'nobody'" in unknown.text


def test_the_preview_of_hotspots_needs_the_admin_key(empty, server):
    for number in itertools.count():  # a hotspot is used in three different seconds at least
        text = {"text": "Call me Ishmael. " * 10 + str(number), "sampling_params": {"max_new_tokens": 1}}
        empty.post("/generate", json=text).raise_for_status()
        answer = empty.get("/radiximp/hotspots", params={"preview": "true"}).raise_for_status().json()
        (rank,) = answer["ranks"]
        if rank["hotspots"]:
            break
        assert number < 1000
    assert any("Ishmael" in row["preview"] for row in rank["hotspots"])
    (rank,) = empty.get("/radiximp/hotspots").json()["ranks"]
    assert not any("preview" in row or "preview_ids" in row for row in rank["hotspots"])
    assert httpx.get(f"{server.url}/radiximp/hotspots?preview=true").status_code == 401


def test_a_client_cannot_pass_for_warm_traffic(empty):
    def num_warm() -> tuple[int, int]:
        """What counted as warm, and the server's own pieces of prompts, of which a slow machine makes more."""
        answer = empty.get("/radiximp/stats").json()
        return answer["ranks"][0]["requests"]["warm"], answer["prewarm"]["pieces"]

    before = num_warm()
    sampling = {"max_new_tokens": 1, "temperature": 0}
    for rid in ("radiximp-prewarm-1", ["mine", "radiximp-prewarm-2"]):
        ids = [fresh(20)] * 2 if isinstance(rid, list) else fresh(20)
        refused = empty.post("/generate", json={"input_ids": ids, "sampling_params": sampling, "rid": rid})
        assert refused.status_code == 400 and "the server's own pre-warms" in refused.text, refused.text
    assert prewarm(empty, fresh(40))["error"] is None
    warm, pieces = (after - of_before for after, of_before in zip(num_warm(), before, strict=True))
    assert warm == pieces > 0


# ---- hints ----


def hinted(api, ids: list[int], name: str, payload: dict, **body) -> httpx.Response:
    action = {"action_id": "1", "action_type": name, "action_version": "1", "payload": payload}
    body |= {"kv_hints": {"protocol_version": "1", "message_id": "m", "actions": [action]}}
    body |= {"input_ids": ids, "sampling_params": {"max_new_tokens": 4, "temperature": 0}}
    return api.post("/generate", json=body)


def test_hints_retain_demote_and_a_bad_one_is_a_400_before_the_request_runs(empty):
    before, ids = stats(empty)["hints"], fresh(200)
    bad = hinted(empty, ids, "retain", {"ttl_s": "long"})
    assert bad.status_code == 400 and "payload.ttl_s" in bad.text
    assert generate(empty, ids)["cached_tokens"] == 0
    assert hinted(empty, ids, "retain", {"ttl_s": 600}, cache_salt="a").status_code == 200
    assert stats(empty)["pinned_tokens"] == 200
    assert hinted(empty, fresh(50), "demote", {}).status_code == 200
    assert hinted(empty, fresh(50), "teleport", {"to": "moon"}).status_code == 200
    after = stats(empty)["hints"]
    assert {name: after[name] - before[name] for name in ("retain", "demote")} == {"retain": 1, "demote": 1}
    assert after["demoted_tokens"] - before["demoted_tokens"] >= 50
    assert empty.get("/radiximp/pins").json()["ranks"][0]["pins"][0]["pin_id"] == "hint"


# ---- CASES 4, 5, 6, 10 ----


def test_case_4_a_thousand_questions_change_nothing(empty):
    first, second = fresh(1200), fresh(1200)
    generate(empty, first)
    generate(empty, second)
    job = prewarm(empty, fresh(5))["id"]
    pin_id = pin(empty, first[:10], ttl_s=1e6).json()["pin_id"]
    (rank,) = empty.get("/radiximp/tree").json()["ranks"]
    node = f"/radiximp/tree/{rank['tree']['columns']['id'][0]}"
    paths = [
        *("/radiximp/stats", "/radiximp/hotspots?limit=100", "/radiximp/hotspots?preview=true"),
        *("/radiximp/pins", f"/radiximp/pins/{pin_id}"),
        *("/radiximp/prewarm", f"/radiximp/prewarm/{job}"),
        *("/radiximp/hotspots/export", "/radiximp/report", "/radiximp/calibration"),
        *("/radiximp/", "/radiximp/tree", node),
    ]
    served = {route.path for route in _routes() if "GET" in route.methods and route.include_in_schema}
    names = {pin_id: "{pin_id}", job: "{job_id}", node: "/radiximp/tree/{node_id}"}
    asked = {path.partition("?")[0] for path in paths}
    for value, name in names.items():
        asked = {path.replace(value, name) for path in asked}
    assert asked == served, "a GET that this test does not ask"
    before = stats(empty)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(empty.get, (paths[i % len(paths)] for i in range(1000))))
    assert {answer.status_code for answer in answers} == {200}
    after = stats(empty)
    for name in ("nodes", "uses", "leaves", "evictions", "victim_digest", "pinned_tokens"):
        assert after[name] == before[name], name


def test_case_5_a_soft_pin_beyond_the_budget_displaces_the_coldest(empty):
    prompts = [fresh(400) for _ in range(3)]
    for ids in prompts:
        generate(empty, ids)
    pins = [pin(empty, ids, ttl_s=600).json() for ids in prompts]
    assert [made["tokens_pinned"] for made in pins] == [400, 400, 400]
    codes = [empty.get(f"/radiximp/pins/{made['pin_id']}").status_code for made in pins]
    assert codes == [404, 200, 200]
    found = stats(empty)
    assert found["pinned_tokens"] == 800 <= found["pin_budget_tokens"] == POOL_TOKENS // 4


def test_case_6_the_life_of_a_pin(empty):
    ids = fresh(300)
    generate(empty, ids)
    twice = [pin(empty, ids, ttl_s=600).json()["pin_id"] for _ in range(2)]
    empty.delete(f"/radiximp/pins/{twice[0]}").raise_for_status()
    assert stats(empty)["pinned_tokens"] == 300
    empty.delete(f"/radiximp/pins/{twice[1]}").raise_for_status()
    assert stats(empty)["pinned_tokens"] == 0
    assert empty.delete(f"/radiximp/pins/{twice[1]}").status_code == 404
    short = pin(empty, ids, ttl_s=0.5).json()["pin_id"]
    deadline = time.monotonic() + 60
    while empty.get(f"/radiximp/pins/{short}").status_code == 200:
        assert time.monotonic() < deadline
        generate(empty, fresh(5))  # the clock of the tree is that of the requests
    generate(empty, ids)
    assert empty.get(f"/radiximp/pins/{short}").status_code == 404 and stats(empty)["pinned_tokens"] == 0
    pin(empty, ids, ttl_s=600)
    empty.post("/flush_cache", params={"timeout": 60}).raise_for_status()
    assert empty.get("/radiximp/pins").json()["ranks"][0]["pins"] == []


def test_case_10_namespaces_that_join_to_the_same_string_share_nothing(empty):
    ids = fresh(40)
    spaces = [{"extra_key": "ab", "cache_salt": "c"}, {"extra_key": "a", "cache_salt": "bc"}]
    spaces += [{"extra_key": "abc"}, {"cache_salt": "abc"}, {}]
    for given in spaces:
        assert prewarm(empty, ids, **given)["tokens_prefilled"] == 40, given
    for given in spaces:
        assert pin(empty, ids, ttl_s=60, **given).json()["tokens_pinned"] == 40
        assert generate(empty, ids, **given)["cached_tokens"] == 39
    nobody = {"extra_key": "ab", "cache_salt": "C"}
    assert pin(empty, ids, ttl_s=60, **nobody).json()["tokens_pinned"] == 0
    assert generate(empty, ids, **nobody)["cached_tokens"] == 0


# ---- limits ----


@pytest.mark.parametrize("path", ["pins", "prewarm"])
@pytest.mark.parametrize(
    "content, status, text",
    [
        ('{"prompts": [{"text": "\\ud800"}]}', 400, "unpaired surrogate"),
        ('{"prompts": [{"text": "a"}], "cache_salt": "\\udc00"}', 400, "unpaired surrogate"),
        ('{"prompts": [{"text": "a"}]', 400, "JSON"),
        ("[" * 100_000, 400, ""),
        ('{"prompts": [{"input_ids": [' + "9" * 5000 + "]}]}", 400, ""),
        ('{"prompts": [{"text": "' + "a" * 500_000 + '"}]}', 400, "got 500000 characters"),
        ('{"prompts": [{"text": "' + "a" * bodies.MAX_BODY_BYTES + '"}]}', 413, "at most 4194304 bytes"),
        ('{"prompts": [{"text": "a"}], "lora_path": "nobody"}', 400, "--enable-lora"),
        ('{"prompts": [{"text": "a"}], "prewarm_id": "x"}', 400, "prewarm_id"),
    ],
)
def test_what_no_server_can_do_is_a_clear_4xx(api, path, content, status, text):
    headers = {"Content-Type": "application/json"}
    answer = api.post(f"/radiximp/{path}", content=content, headers=headers)
    assert (answer.status_code, text in answer.text) == (status, True), answer.text[:300]
    assert api.get("/health").status_code == 200


def test_a_body_without_a_length_is_bounded_too(api):
    def chunks():
        for _ in range(100):
            yield b" " * 65_536

    answer = api.post("/radiximp/pins", content=chunks(), headers={"Content-Type": "application/json"})
    assert answer.status_code == 413


def test_there_is_a_largest_number_of_pins_and_the_server_works_on(empty):
    body = {"prompts": [{"input_ids": [n, n + 1, n + 2]} for n in range(250)], "ttl_s": 600}
    answers = [empty.post("/radiximp/pins", json=body) for _ in range(41)]
    assert [answer.status_code for answer in answers] == [201] * 40 + [409]
    assert "at most 10000 prompts can be pinned, 10000 are" in answers[-1].text
    started = time.monotonic()
    assert len(empty.get("/radiximp/pins").json()["ranks"][0]["pins"]) == 10_000
    assert time.monotonic() - started < 10
    assert generate(empty, fresh(30))["cached_tokens"] == 0
    for answer in answers[:-1]:
        empty.delete(f"/radiximp/pins/{answer.json()['pin_id']}").raise_for_status()
    assert empty.get("/radiximp/pins").json()["ranks"][0]["pins"] == []


def test_two_hundred_calls_at_once_take_bounded_memory_and_queue(empty, server):
    body = json.dumps({"prompts": [{"input_ids": fresh(4000)}] * 12})
    launcher = psutil.Process(server.process.pid)
    before_bytes = launcher.memory_info().rss
    headers = {"Content-Type": "application/json"}
    with ThreadPoolExecutor(64) as pool:
        calls = [
            pool.submit(empty.post, "/radiximp/prewarm", content=body, headers=headers) for _ in range(200)
        ]
        answers = [call.result() for call in calls]
    grown_bytes = launcher.memory_info().rss - before_bytes
    assert {answer.status_code for answer in answers} == {202, 429}
    assert all(int(a.headers["Retry-After"]) > 0 for a in answers if a.status_code == 429)
    assert sum(answer.status_code == 202 for answer in answers) <= 66
    for answer in answers:
        if answer.status_code == 202:
            empty.delete(answer.json()["status_url"]).raise_for_status()
    assert grown_bytes < 400 << 20, f"{grown_bytes >> 20} MiB"
    assert generate(empty, fresh(30))["cached_tokens"] == 0


# ---- fuzz ----


def _routes() -> list:
    http.add_routes()
    app = http.http_server.app
    return [route for route in app.routes if getattr(route, "path", "").startswith("/radiximp/")]


SCHEMA = schemathesis.openapi.from_dict(get_openapi(title="radiximp", version="1", routes=_routes()))


@SCHEMA.parametrize()
@settings(max_examples=40, derandomize=True, suppress_health_check=list(HealthCheck), database=None)
def test_no_input_is_a_5xx_or_a_hang(case, server):
    answer = case.call(base_url=server.url, headers=ADMIN, timeout=30)
    assert answer.status_code < 500, (answer.status_code, answer.text[:300])
    assert answer.status_code not in (401, 403)


def test_the_server_works_after_the_fuzz(empty):
    ids = fresh(50)
    assert generate(empty, ids)["cached_tokens"] == 0 and generate(empty, ids)["cached_tokens"] == 49
