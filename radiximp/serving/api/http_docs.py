"""The reference of the `/radiximp/` calls, made from their routes and forms: `python -m radiximp.serving.api.http_docs > docs/api.md`.

It is FastAPI's OpenAPI description as Markdown; a test compares the page with it.
"""

from __future__ import annotations

import json
from typing import Any

from fastapi.openapi.utils import get_openapi
from sglang.srt.entrypoints import http_server

from radiximp.serving.api import http

_HEAD = """# HTTP calls

<!-- Made by `python -m radiximp.serving.api.http_docs > docs/api.md`; do not edit. -->

They are part of SGLang's own HTTP app, on its port, and exist only with `--radix-eviction-policy importance`. They need the admin key
where one is set (`--admin-api-key`), the API key where only that is (`--api-key`), and nothing otherwise: `Authorization: Bearer KEY`. Those that show
other people's prompts say so: they always need the admin key.
Bodies and answers are JSON. An answer under `ranks` has one entry per data-parallel rank, each with `dp_rank`.
A wrong field, type or value is a 400 that names it; an unknown field is wrong, too. A rank without the plugin is a 500 that names the rank.

`radiximp.Client` and `radiximp.AsyncClient` make these calls from Python (`pip install 'radiximp[client]'`), the commands
`radiximp prewarm`, `radiximp pins` and `radiximp hotspots` from a shell. What fields and answers mean: [pre-warm and pins](prewarm-and-pins.md).
"""
_LIMITS = {
    "minimum": "at least {:g}",
    "exclusiveMinimum": "more than {:g}",
    "maximum": "at most {:g}",
    "minLength": "characters: at least {:g}",
    "maxLength": "characters: at most {:g}",
    "minItems": "entries: at least {:g}",
    "maxItems": "entries: at most {:g}",
}


def openapi() -> dict[str, Any]:
    """OpenAPI of our routes alone."""
    http.add_routes()
    routes = [
        route for route in http_server.app.routes if getattr(route, "path", "").startswith("/radiximp/")
    ]
    return get_openapi(title="radiximp", version="0", routes=routes)


def page() -> str:
    """The page as Markdown."""
    described = openapi()
    forms = described["components"]["schemas"]
    parts = [_HEAD]
    for path, methods in described["paths"].items():
        for method, call in methods.items():
            parts.append(_call(method, path, call, forms))
    used = [name for name in forms if f"[{name}]" in "".join(parts)]
    parts += [f"## {name}\n\n{forms[name]['description']}\n\n{_fields(forms[name])}" for name in used]
    return "\n".join(parts)


def _call(method: str, path: str, call: dict, forms: dict) -> str:
    status = min(code for code in call["responses"] if code.startswith("2"))
    lines = [
        f"## {method.upper()} {path}",
        "",
        f"{call.get('description', '')} Answers {status}.".strip(),
        "",
    ]
    rows = [
        _row(parameter["name"], parameter["schema"], parameter["in"], parameter["required"])
        for parameter in call.get("parameters", ())
    ]
    if rows:
        lines += ["| name | in | type | default | limits |", "|---|---|---|---|---|", *rows, ""]
    if "requestBody" in call:
        schema = call["requestBody"]["content"]["application/json"]["schema"]
        form = forms[schema["$ref"].rpartition("/")[2]]
        lines += [_fields(form)]
    return "\n".join(lines)


def _fields(form: dict) -> str:
    lines = ["| field | type | default | limits |", "|---|---|---|---|"]
    required = form.get("required", ())
    lines += [_row(name, schema, None, name in required) for name, schema in form["properties"].items()]
    return "\n".join([*lines, ""])


def _row(name: str, schema: dict, place: str | None, is_required: bool) -> str:
    default = "required" if is_required else f"`{json.dumps(schema.get('default'))}`"
    cells = [f"`{name}`", *([place] if place else []), _type(schema), default, _limits(schema)]
    return "| " + " | ".join(cells) + " |"


def _kinds(schema: dict) -> list[dict]:
    return [kind for kind in schema.get("anyOf", [schema]) if kind.get("type") != "null"]


def _type(schema: dict) -> str:
    return " or ".join(_type_of(kind) for kind in _kinds(schema))


def _type_of(kind: dict) -> str:
    if "$ref" in kind:
        name = kind["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "enum" in kind:
        return ", ".join(f"`{value}`" for value in kind["enum"])
    if kind.get("type") == "array":
        return f"list of {_type(kind['items'])}"
    return kind["type"]


def _limits(schema: dict) -> str:
    return ", ".join(
        text.format(kind[key]) for kind in _kinds(schema) for key, text in _LIMITS.items() if key in kind
    )


if __name__ == "__main__":
    print(page(), end="")
