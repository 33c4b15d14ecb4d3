"""The documents say what is so: their commands and targets exist, their Python runs, their links lead somewhere."""

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from synthetic import training_run

from tracekit.cli.main import command as cli

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
LINK = re.compile(r"\]\(([^)#]+)[^)]*\)")


def blocks(document: Path, language: str) -> list[str]:
    return [text for kind, text in BLOCK.findall(document.read_text()) if kind == language]


def console_lines() -> Iterator[str]:
    """Everything that a reader is told to type."""
    for document in DOCUMENTS:
        for block in blocks(document, "console"):
            yield from (line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ "))


def mentioned(pattern: str) -> list[str]:
    """The console lines and the inline code of all documents that match from their beginning."""
    inline = [code for document in DOCUMENTS for code in INLINE.findall(BLOCK.sub("", document.read_text()))]
    return sorted({line for line in [*console_lines(), *inline] if re.match(pattern, line)})


def find_command(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that the words name, and the words behind its name."""
    found: click.Command = cli
    while isinstance(found, click.Group) and words:
        inner = found.get_command(click.Context(found), words[0])
        assert inner is not None, f"no command `{words[0]}`"
        found, words = inner, words[1:]
    return found, words


@pytest.mark.parametrize("line", mentioned(r"tracekit( |$)"))
def test_commands_and_their_options_exist(line: str) -> None:
    found, words = find_command(shlex.split(line)[1:])
    own = words[: words.index("--")] if "--" in words else words
    known = {option for parameter in found.params for option in [*parameter.opts, *parameter.secondary_opts]}
    used = {word.split("=")[0] for word in own if word.startswith("-")}
    assert used <= known | {"--help"}


@pytest.mark.parametrize("line", list(console_lines()))
def test_a_line_to_type_is_of_a_kind_that_is_checked_here(line: str) -> None:
    assert line.split()[0] in ("tracekit", "make", "pip")


@pytest.mark.parametrize("name", cli.list_commands(click.Context(cli)))
def test_every_command_has_help_and_a_row_in_the_readme(name: str) -> None:
    found, _ = find_command([name])
    assert found.get_short_help_str()
    assert re.search(rf"^\| `tracekit {name}\b", (ROOT / "README.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize("line", mentioned(r"make [a-z]"))
def test_make_targets_exist(line: str) -> None:
    dry = subprocess.run([*shlex.split(line), "--dry-run"], cwd=ROOT, capture_output=True, text=True)
    assert dry.returncode == 0, dry.stderr


def test_make_help_lists_every_target() -> None:
    listed = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for target in ["help", "install", "demo", "test", "bench", "lint", "clean"]:
        assert f"make {target} " in listed


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_links_and_paths_lead_somewhere(document: Path) -> None:
    text = document.read_text()
    targets = [document.parent / link for link in LINK.findall(text) if "://" not in link]
    targets += [ROOT / path for path in re.findall(r"(?:samples|benchmarks|docs)/[\w/.-]+\.\w+", text)]
    assert [str(target) for target in targets if not target.exists()] == []


@pytest.mark.parametrize("code", blocks(ROOT / "README.md", "python"))
def test_the_readmes_python_runs(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training_run(tmp_path / "tracekit-runs/demo")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), names)
    assert "tracekit" in names
