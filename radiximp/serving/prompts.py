"""What the HTTP calls take as prompts, checked, and turned into the tokens that a later request of that kind will have."""

from __future__ import annotations

import asyncio
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

MAX_PROMPTS = 256
# Of one call: a scheduler reads them between two batches.
MAX_TOKENS = 1 << 18
_MAX_KEY_CHARACTERS = 512


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


class Prompts(Form):
    """Prompts of one tenant."""

    prompts: list[Prompt] = Field(min_length=1, max_length=MAX_PROMPTS)
    cache_salt: str | None = Field(None, max_length=_MAX_KEY_CHARACTERS)
    extra_key: str | None = Field(None, max_length=_MAX_KEY_CHARACTERS)


class PinForm(Prompts):
    """`POST /radiximp/pins`."""

    ttl_s: float | None = Field(None, gt=0, le=1e9, allow_inf_nan=False)
    hard: bool = False


class PrewarmForm(Prompts):
    """`POST /radiximp/prewarm`."""

    retain_s: float | None = Field(None, gt=0, le=1e9, allow_inf_nan=False)


class PromptError(ValueError):
    """A prompt that this model cannot have; the message names it and says what was expected."""


async def tokenized(state, chat, body: Prompts) -> list[dict]:
    """{"input_ids", "extra_key", "cache_salt"} of each prompt, as the server's own requests would carry them.

    state: SGLang's global state; chat: its handler of chat completions, whose template `messages` go through. Raises
    PromptError.
    """
    manager = state.tokenizer_manager
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
            }
        )
        num_tokens += len(ids)
        if num_tokens > MAX_TOKENS:
            raise PromptError(
                f"prompts: expected at most {MAX_TOKENS} tokens in one call; give fewer prompts"
            )
    return found


def _encode(manager, chat, prompt: Prompt, number: int) -> list[int]:
    if manager.tokenizer is None:
        raise PromptError(
            f"prompts[{number}]: this server has no tokenizer (--skip-tokenizer-init); give input_ids"
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
