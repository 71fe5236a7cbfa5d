"""Where the needles go: the pages that the model attends to least when it is asked something else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from eval.lossless import prompts
from eval.lossless.prompts import PAGE_TOKENS, Document

if TYPE_CHECKING:  # torch is loaded by who observes, not by who judges
    from eval.model_attention import ModelAttention

# Pages between two needles at least; a needle is about one page long.
_APART = 3


def least_important(densities: np.ndarray, number: int) -> list[int]:
    """The pages of lowest density that are apart from each other, lowest first; NaN is no page, nor is the first."""
    chosen: list[int] = []
    for page in np.argsort(np.where(np.isnan(densities), np.inf, densities), kind="stable").tolist():
        if page and not np.isnan(densities[page]) and all(abs(page - other) >= _APART for other in chosen):
            chosen.append(page)
        if len(chosen) == number:
            return chosen
    raise ValueError(f"{number} pages asked for, {len(chosen)} found among {len(densities)}")


def place(model: ModelAttention, document: Document) -> list[int]:
    """Pages for the document's needles, from one pass over it and a neutral question."""
    body = prompts.filler(model.tokenizer, document)
    ids = body + prompts.neutral(model.tokenizer)
    model.read(ids)
    densities = model.observe(len(ids), 0, block_tokens=PAGE_TOKENS).block_densities().numpy()
    # The last pages would be cut by the end of the document.
    usable = len(body) // PAGE_TOKENS - 2
    return least_important(densities[:usable], len(document.words))
