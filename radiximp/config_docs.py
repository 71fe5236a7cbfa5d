"""The reference of every setting, made from `PolicyConfig`: `python -m radiximp.config_docs > docs/config.md`.

Each row is what the code holds; a test compares the page with it.
"""

from __future__ import annotations

import dataclasses

from radiximp.config import PolicyConfig

_TYPES = {"float": "number", "int": "integer", "bool": "true or false", "str": "text"}
_PAGE = """# Settings

<!-- Made by `python -m radiximp.config_docs > docs/config.md`; do not edit. -->

One JSON object holds them all. It is checked before any weight is loaded; a mistake is one line that names the key, the value and
what was expected, and exit code 2. What is left out has its default.

```sh
python -m sglang.launch_server --model-path M --enable-hierarchical-cache --radix-eviction-policy importance --radix-eviction-policy-config '{example}'
```

`radiximp replay` and `radiximp tune` take the same object as `--policy-config`. What a running server has is under `config` in
`GET /radiximp/stats`. A change needs a restart. Ranges include both ends; `_s` is seconds, `_tokens` tokens.

{table}

Which symptom asks for which setting: [tuning](tuning.md).
"""


def rows() -> list[tuple[str, str, str, str, str]]:
    """(key, type, default, range or choices, meaning) of each setting, in the order of the code."""
    return [
        (field.name, _type(field), _value(field.default), _range(field), field.metadata["help"])
        for field in dataclasses.fields(PolicyConfig)
    ]


def _type(field: dataclasses.Field) -> str:
    return "choice" if "choices" in field.metadata else _TYPES[field.type]


def _value(value: str | bool | float) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value or '""' if isinstance(value, str) else f"{value:g}"


def _range(field: dataclasses.Field) -> str:
    if "choices" in field.metadata:
        return ", ".join(field.metadata["choices"])
    if field.type == "bool":
        return "true, false"
    return "text" if field.type == "str" else f"{field.metadata['low']:g} … {field.metadata['high']:g}"


def page() -> str:
    """The page as Markdown."""
    lines = ["| key | type | default | range or choices | meaning |", "|---|---|---|---|---|"]
    lines += [f"| `{key}` | " + " | ".join(cells) + " |" for key, *cells in rows()]
    return _PAGE.format(table="\n".join(lines), example='{"law_half_life_s": 3600}')


if __name__ == "__main__":
    print(page(), end="")
