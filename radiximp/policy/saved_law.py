"""The learned law of reuse as bytes: versioned, with a digest, refused whole when anything is off.

{"radiximp_law": 1, "digest": "...", "law": {"model": ..., "edges_s": [...], "classes": [...], ...}}
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import orjson

from radiximp.policy.reuse_law import EDGES_S, NUM_BINS, ReuseLaw

VERSION = 1
_EDGES_S = [round(edge, 6) for edge in EDGES_S.tolist()]


class SavedLawError(ValueError):
    """The bytes are no law for this model and version; the message says what was expected."""


def dump_law(law: ReuseLaw, now_s: float, model: str) -> bytes:
    """The evidence as of `now_s`; `model` names what it was learned with."""
    classes, reuse, exposure_s = law.evidence(now_s)
    content = {
        "model": model,
        "edges_s": _EDGES_S,
        "classes": classes,
        "reuse": reuse.tolist(),
        "exposure_s": exposure_s.tolist(),
        "mean_span_tokens": law.mean_span_tokens,
    }
    return orjson.dumps({"radiximp_law": VERSION, "digest": _digest(content), "law": content})


def load_law(law: ReuseLaw, data: bytes, model: str) -> None:
    """Give a law that has seen nothing the evidence of `data`. Raises SavedLawError with the law unchanged."""
    try:
        outer = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise SavedLawError(f"expected the JSON that radiximp writes: {error}") from None
    if not isinstance(outer, dict) or outer.get("radiximp_law") != VERSION:
        raise SavedLawError(f"expected a radiximp law of version {VERSION}")
    content = outer.get("law")
    if not isinstance(content, dict) or outer.get("digest") != _digest(content):
        raise SavedLawError("the digest does not match: the file is damaged")
    if content["model"] != model:
        raise SavedLawError(f"learned with model {content['model']!r}, this server runs {model!r}")
    if content["edges_s"] != _EDGES_S:
        raise SavedLawError("made with other age bins")
    classes = [tuple(features) for features in content["classes"]]
    reuse, exposure_s = np.array(content["reuse"], float), np.array(content["exposure_s"], float)
    if reuse.shape != exposure_s.shape or reuse.shape != (len(classes), NUM_BINS):
        raise SavedLawError("classes and evidence differ in number")
    law.adopt(classes, reuse, exposure_s, content["mean_span_tokens"])


def _digest(content: Any) -> str:
    return hashlib.blake2b(orjson.dumps(content, option=orjson.OPT_SORT_KEYS), digest_size=16).hexdigest()
