"""SGLang's own server test kits against a server with `--radix-eviction-policy importance`.

Workloads are cut to what a 135M model does on two cores; nothing else about the kits changes. Left out:
- `prefix_cache_branching_kit`: expects the checkpoints of a linear-attention model (the second request hits
  nothing); a dense model hits the shared prefix at once.
- `test_gsm8k`, `test_gsm8k_two_passes`: accuracy of a large model on a data set from the network.
- `test_basic_math`: 17 x 23 is beyond the model, with or without the policy.
"""

from __future__ import annotations

import functools
import json
import random
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import requests
from sglang.srt.utils.hf_transformers_utils import get_tokenizer
from sglang.test.kits import cache_hit_kit, radix_cache_server_kit, streaming_session_kit
from sglang.test.kits.basic_api_contract_kit import BasicAPIContractMixin
from sglang.test.kits.basic_decode_correctness_kit import BasicDecodeCorrectnessMixin
from sglang.test.kits.streaming_session_kit import AbortLeakReproKitMixin, StreamingSessionKitMixin
from sglang.test.kits.unified_radix_cache_kit import AccuracyTwoPassMixin, UnifiedRadixTreeTestMixin
from sglang.test.server_fixtures import streaming_session_fixture

from radiximp.serving import default_model
from tests.server.server import launch

POLICY = ["--radix-eviction-policy", "importance"]


class OnServer(unittest.TestCase):
    """One server per class, with the names that the kits read."""

    flags: list[str] = []
    env: dict[str, str] = {}

    @classmethod
    def setUpClass(cls):
        cls.model = str(default_model.prepare(lambda line: None))
        cls.tokenizer = get_tokenizer(cls.model)
        folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        # A kit that uses a connection again at the moment in which the server ends it for idleness fails by chance.
        env = {
            "SGLANG_TIMEOUT_KEEP_ALIVE": "600",
            "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": folder,
            **cls.env,
        }
        cls.server = cls.enterClassContext(launch([*POLICY, *cls.flags], model=cls.model, env=env))
        cls.base_url, cls.process = cls.server.url, cls.server.process


class TestBasics(BasicAPIContractMixin, BasicDecodeCorrectnessMixin, UnifiedRadixTreeTestMixin, OnServer):
    """API and answers, cached prefixes with a fresh prefill's log-probabilities, a tree that does not fit the device."""

    test_basic_math = test_gsm8k = None
    flags = ["--max-total-tokens", "4096", "--chunked-prefill-size", "128"]
    max_new_tokens = 8
    num_groups = 2
    branches_per_group = 2
    prefix_len = 128
    input_ids = [[random.Random(seed).randrange(1, 30_000) for _ in range(128)] for seed in range(4)]

    def test_radix_attention(self):
        random.seed(0)
        small_tree = functools.partial(radix_cache_server_kit.gen_radix_tree, num_nodes=40, chunk_len=32)
        with mock.patch.object(radix_cache_server_kit, "gen_radix_tree", small_tree):
            radix_cache_server_kit.run_radix_attention_test(self.base_url)
        self.server.flush()

    def test_multiturn_cache_hit(self):
        words = "the cache keeps what the model will need again".split()
        turns = [{"value": " ".join(random.Random(seed).choices(words, k=400))} for seed in range(64)]
        data_set = Path(self.enterContext(tempfile.TemporaryDirectory())) / "conversations.json"
        data_set.write_text(json.dumps([{"conversations": [turn, turn]} for turn in turns]))
        result = cache_hit_kit.run_multiturn_cache_hit_test(
            self.base_url,
            self.model,
            num_clients=4,
            request_length=128,
            output_length=8,
            dataset_path=str(data_set),
        )
        self.assertGreater(result["overall"]["cache_hit_rate"], 0.4)


_post = requests.post


def _post_without_eos(url, **kwargs):
    """The kit aborts what it takes for an endless answer; this model would have ended it by then."""
    sampling = (kwargs.get("json") or {}).get("sampling_params", {})
    if sampling.get("max_new_tokens", 0) >= 100_000:
        sampling["ignore_eos"] = True
    return _post(url, **kwargs)


class TestStreamingSessions(StreamingSessionKitMixin, OnServer):
    # The kit asks for 100,000 tokens and aborts; the model's context is shorter.
    flags = ["--enable-streaming-session", "--chunked-prefill-size", "128", "--allow-auto-truncate"]
    env = {"SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1"}

    def setUp(self):
        sizes = {
            "CONCURRENT_LOGPROB_SESSIONS": 3,
            "CONCURRENT_LOGPROB_TURNS": 3,
            "CONCURRENT_LOGPROB_ROUNDS": 1,
            "STRESS_NUM_SESSIONS": 3,
            "STRESS_NUM_NON_STREAMING": 2,
            "STRESS_NUM_TURNS": 3,
        }
        self.enterContext(mock.patch.multiple(streaming_session_fixture, **sizes))
        self.enterContext(mock.patch.object(streaming_session_kit.requests, "post", _post_without_eos))


class TestAbortLeak(AbortLeakReproKitMixin, OnServer):
    flags = [
        *("--enable-streaming-session", "--page-size", "256", "--context-length", "512"),
        *("--hicache-mem-layout", "page_first_direct"),
    ]

    def setUp(self):
        self.enterContext(mock.patch.object(streaming_session_fixture, "ABORT_REPRO_ROUNDS", 2))


class TestStorage(AccuracyTwoPassMixin, OnServer):
    test_gsm8k_two_passes = None
    flags = [
        *("--page-size", "64", "--hicache-mem-layout", "page_first_direct"),
        *("--hicache-storage-backend", "file", "--hicache-storage-prefetch-policy", "wait_complete"),
    ]
