"""Answers that the model gives itself, for conversations of which only the questions are public; greedy, all at once."""

from __future__ import annotations

from pathlib import Path

import torch

from eval import talks

NUM_TOKENS = 48
_MAX_CHARS = 220
_SYSTEM = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
)


@torch.no_grad()
def own_answers(path: Path, number: int) -> list[list[str]]:
    """[question, first answer, second question, second answer] of `number` questions of MT-bench."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(path), padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(str(path), dtype=torch.float32).eval()
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    # The others' padding would cost more than all of these together.
    short = [turns for _, turns in talks.questions() if max(map(len, turns)) <= _MAX_CHARS]
    every = len(short) / number  # spread over the categories, which come in blocks
    asked = [short[int(i * every)] for i in range(number)]
    texts, answers = [_SYSTEM] * len(asked), [[] for _ in asked]
    for turn in range(2):
        texts = [
            f"{text}<|im_start|>user\n{question[turn]}<|im_end|>\n<|im_start|>assistant\n"
            for text, question in zip(texts, asked, strict=True)
        ]
        batch = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
        output = model.generate(
            **batch, max_new_tokens=NUM_TOKENS, do_sample=False, pad_token_id=tokenizer.pad_token_id
        )
        said = tokenizer.batch_decode(output[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
        for own, question, text in zip(answers, asked, said, strict=True):
            own += [question[turn], text.strip()]
        texts = [f"{text}{own[-1]}<|im_end|>\n" for text, own in zip(texts, answers, strict=True)]
    return answers
