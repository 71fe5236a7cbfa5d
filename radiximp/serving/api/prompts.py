"""What the HTTP calls take as prompts, checked, and turned into the tokens that a later request of that kind will have."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

MAX_PROMPTS = 256
# No tokenizer gives fewer tokens than this: a longer text is refused before it is read, which would take seconds.
_MAX_CHARACTERS_PER_TOKEN = 32
# Of one call: a scheduler reads them between two batches.
MAX_TOKENS = 1 << 18
_MAX_KEY_CHARACTERS = 512
# Below what an integer of JSON holds in every language; the tree counts its nodes from 0.
MAX_NODE_ID = 10**15
MAX_DP_RANK = (1 << 16) - 1


class Form(BaseModel):
    """Base: an unknown field is an error, not a silent no-op."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Prompt(Form):
    """One prompt in exactly one of three forms; `tools` go with `messages`."""

    messages: list[dict[str, Any]] | None = Field(None, min_length=1)
    tools: list[dict[str, Any]] | None = None
    text: str | None = Field(None, min_length=1)
    input_ids: list[int] | None = Field(None, min_length=1)

    @model_validator(mode="after")
    def _one_form(self) -> Prompt:
        given = [name for name in ("messages", "text", "input_ids") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"expected exactly one of messages, text, input_ids, got {len(given)}")
        if self.tools is not None and self.messages is None:
            raise ValueError("tools go with messages only")
        return self


class Namespace(Form):
    """Whose prompts: SGLang keeps the KV of each of these apart. lora_path: an adapter by name, as requests give it."""

    cache_salt: str | None = Field(None, max_length=_MAX_KEY_CHARACTERS)
    extra_key: str | None = Field(None, max_length=_MAX_KEY_CHARACTERS)
    lora_path: str | None = Field(None, min_length=1, max_length=_MAX_KEY_CHARACTERS)


class Prompts(Namespace):
    """Prompts of one tenant."""

    prompts: list[Prompt] = Field(min_length=1, max_length=MAX_PROMPTS)


class PinForm(Namespace):
    """`POST /radiximp/pins`: prompts, those of a pre-warm job, or the one that ends with a node of the tree; the latter two have their own namespace.

    dp_rank: whose tree the node is in.
    """

    prompts: list[Prompt] | None = Field(None, min_length=1, max_length=MAX_PROMPTS)
    prewarm_id: str | None = Field(None, min_length=1, max_length=_MAX_KEY_CHARACTERS)
    node_id: int | None = Field(None, ge=0, le=MAX_NODE_ID)
    dp_rank: int = Field(0, ge=0, le=MAX_DP_RANK)

    ttl_s: float | None = Field(None, gt=0, le=1e9, allow_inf_nan=False)
    hard: bool = False

    @model_validator(mode="after")
    def _one_source(self) -> PinForm:
        given = [name for name in ("prompts", "prewarm_id", "node_id") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"expected exactly one of prompts, prewarm_id, node_id, got {len(given)}")
        if self.prompts is None and (self.cache_salt or self.extra_key or self.lora_path):
            raise ValueError(f"{given[0]} brings its own cache_salt, extra_key and lora_path; leave them out")
        if self.node_id is None and "dp_rank" in self.model_fields_set:
            raise ValueError("dp_rank goes with node_id only")
        return self


class PrewarmForm(Prompts):
    """`POST /radiximp/prewarm`."""

    tier: Literal["device", "host"] = "device"
    retain_s: float | None = Field(None, gt=0, le=1e9, allow_inf_nan=False)

    @model_validator(mode="after")
    def _retained_on_the_device(self) -> PrewarmForm:
        if self.tier == "host" and self.retain_s is not None:
            raise ValueError("retain_s keeps a prompt on the device; leave it out with tier host")
        return self


class PromptError(ValueError):
    """A prompt that this model cannot have; the message names it and says what was expected."""


async def tokenized(state, chat, body: Prompts | PinForm) -> list[dict]:
    """{"input_ids", "extra_key", "cache_salt", "lora_path"} of each prompt, as the server's own requests would carry them.

    state: SGLang's global state; chat: its handler of chat completions, whose template `messages` go through. Raises
    PromptError.
    """
    manager = state.tokenizer_manager
    lora_id_of(manager, body.lora_path)
    found: list[dict] = []
    num_tokens = 0
    for number, prompt in enumerate(body.prompts):
        await asyncio.sleep(0)  # users' streams go on between two prompts
        ids = prompt.input_ids if prompt.input_ids is not None else _encode(manager, chat, prompt, number)
        vocabulary = manager.model_config.vocab_size
        wrong = next((token for token in ids if not 0 <= token < vocabulary), None)
        if wrong is not None:
            raise PromptError(
                f"prompts[{number}].input_ids: expected tokens from 0 to {vocabulary - 1}, got {wrong}"
            )
        if not 0 < len(ids) < manager.context_len:
            raise PromptError(
                f"prompts[{number}]: expected 1 to {manager.context_len - 1} tokens, got {len(ids)}"
            )
        found.append(
            {
                "input_ids": list(ids),
                "extra_key": body.extra_key or None,
                "cache_salt": body.cache_salt or None,
                "lora_path": body.lora_path,
            }
        )
        num_tokens += len(ids)
        if num_tokens > MAX_TOKENS:
            raise PromptError(
                f"prompts: expected at most {MAX_TOKENS} tokens in one call; give fewer prompts"
            )
    return found


def lora_id_of(manager, lora_path: str | None) -> str | None:
    """The id that the adapter's KV is kept under now. Raises PromptError for one that this server does not have."""
    if lora_path is None:
        return None
    if not manager.enable_lora:
        raise PromptError(
            f"lora_path: {lora_path!r} needs a server with LoRA; start it with --enable-lora, or leave lora_path out"
        )
    adapter = manager.lora_ref_cache.get(lora_path)
    if adapter is None:
        known = ", ".join(sorted(manager.lora_ref_cache)) or "none"
        raise PromptError(f"lora_path: expected the name of a loaded adapter ({known}), got {lora_path!r}")
    return adapter.lora_id


def as_keys(manager, prompts: list[dict]) -> list[dict]:
    """The prompts as `commands.key_of` reads them. Raises PromptError for an adapter that is gone by now."""
    return [
        {
            "input_ids": prompt["input_ids"],
            "extra_key": prompt["extra_key"],
            "cache_salt": prompt["cache_salt"],
            "lora_id": lora_id_of(manager, prompt.get("lora_path")),
        }
        for prompt in prompts
    ]


def _encode(manager, chat, prompt: Prompt, number: int) -> list[int]:
    if manager.tokenizer is None:
        raise PromptError(
            f"prompts[{number}]: this server has no tokenizer (--skip-tokenizer-init); give input_ids"
        )
    num_characters = len(prompt.text or json.dumps([prompt.messages, prompt.tools], ensure_ascii=False))
    if num_characters > _MAX_CHARACTERS_PER_TOKEN * manager.context_len:
        raise PromptError(
            f"prompts[{number}]: expected 1 to {manager.context_len - 1} tokens, got {num_characters} characters"
        )
    if prompt.text is not None:
        return manager.tokenizer.encode(prompt.text)
    from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest

    try:
        request = ChatCompletionRequest(model="default", messages=prompt.messages, tools=prompt.tools)
        adapted, _ = chat._convert_to_internal_request(request)
    except Exception as error:  # whatever the template or the protocol says of the messages
        raise PromptError(f"prompts[{number}].messages: {str(error).splitlines()[0]}") from None
    if any((adapted.image_data, adapted.audio_data, adapted.video_data)):
        raise PromptError(f"prompts[{number}].messages: expected text only, got images, audio or video")
    return adapted.input_ids if adapted.input_ids is not None else manager.tokenizer.encode(adapted.text)
