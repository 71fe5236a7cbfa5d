"""README.md and docs/*.md: commands parse with the real parsers, settings are settings, links and file names lead somewhere."""

from __future__ import annotations

import re
import tomllib

import pytest

from radiximp import config_docs
from radiximp.cli import COMMANDS
from radiximp.config import PolicyConfig
from tests.docs_pages import PROGRAMS, ROOT, Page, command_parser, headings, pages

PAGES = pages()
for_each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def each(attribute: str):
    """Parameters: one per entry of a page's attribute."""
    found = [(page, entry) for page in PAGES for entry in getattr(page, attribute)]
    assert found, f"no {attribute} in any page"
    return pytest.mark.parametrize(
        "page, entry", found, ids=[f"{page.name}:{number}" for number, (page, _) in enumerate(found)]
    )


def test_the_reference_of_settings_is_what_the_code_says():
    assert (ROOT / "docs/config.md").read_text() == config_docs.page(), (
        "python -m radiximp.config_docs > docs/config.md"
    )


@each("shell_lines")
def test_a_line_of_a_shell_block_is_a_command(page: Page, entry: str):
    assert entry.split()[0] in PROGRAMS, entry


@each("commands")
def test_a_command_is_one_that_its_program_takes(page: Page, entry: list[str]):
    program, *words = entry
    if program == "radiximp":
        check_radiximp(words)
    elif program == "python":
        check_module(words)
    elif program == "make":
        targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert words[0] in targets, f"make {words[0]}: expected one of {targets}"
    elif program == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        for extra in re.findall(r"radiximp\[(\w+)\]", " ".join(words)):
            assert extra in extras


def check_radiximp(words: list[str]) -> None:
    name, *rest = words
    assert name in COMMANDS, f"radiximp {name}: expected one of {', '.join(COMMANDS)}"
    if rest:
        command_parser(name).parse_args(rest)


def check_module(words: list[str]) -> None:
    flag, module, *rest = words
    assert flag == "-m"
    if module == "sglang.launch_server":
        return  # tests/sglang/test_docs.py has SGLang's own parser
    if module == "radiximp.cli":
        return check_radiximp(rest)
    path = ROOT / module.replace(".", "/")
    files = [path.with_suffix(".py")] if path.with_suffix(".py").exists() else sorted(path.glob("*.py"))
    source = "".join(file.read_text() for file in files)
    assert '__name__ == "__main__"' in source or (path / "__main__.py").exists(), f"{module} cannot be run"
    for option in (word for word in rest if word.startswith("--")):
        assert f'"{option}"' in source, f"{module} has no {option}"


@each("settings")
def test_a_setting_is_accepted(page: Page, entry: dict):
    PolicyConfig.from_mapping(entry)


@each("links")
def test_a_link_leads_to_a_file_and_a_heading(page: Page, entry: tuple[str, str]):
    path, anchor = entry
    target = (page.path.parent / path).resolve() if path else page.path
    assert target.exists(), f"{page.name} links to {path}"
    if anchor:
        assert anchor in headings(target.read_text()), f"{page.name} links to {path}#{anchor}"


@for_each_page
def test_a_file_of_the_code_that_is_named_is_there(page: Page):
    named = {span.rstrip("/") for span in page.spans if re.fullmatch(r"\w[\w/]*(\.py|/)", span)}
    there = [f"/{path.relative_to(ROOT)}" for path in ROOT.glob("[!.]*/**/*")]
    there += [f"/{path.name}" for path in ROOT.iterdir()]
    lost = [name for name in named if not any(path.endswith(f"/{name}") for path in there)]
    assert not lost, f"{page.name} names {lost}"
