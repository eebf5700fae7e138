"""Every example in a docstring runs."""

import ast
import re
import textwrap
from pathlib import Path

import pytest

import boughs
from boughs.testing import MockBackend

ROOT = Path(__file__).parents[2]
FOLDERS = ("lang", "runtime", "radix", "kernels", "boughs")
MODEL = "smollm2-135m"
AT_LEAST = {"boughs/testing.py:module", "lang/grammar.py:module", "runtime/engine.py:module"} | {
    f"lang/{place}"
    for place in (
        *("program.py:function", "program.py:run_batch", "primitives.py:gen"),
        *("primitives.py:select", "state.py:fork", "state.py:text_iter", "tools.py:gen_tool_call"),
        "tool_turns.py:tools",
        *("reasoning.py:separate_reasoning", "current.py:backend", "current.py:cached"),
        "call_cache.py:CallCache",
    )
}


def blocks(docstring):
    """The parts of a docstring that are indented, after a blank line, and Python with imports."""
    for block in re.findall(r"(?<=\n\n)((?: {4,}[^\n]*\n|\n)+)", docstring + "\n"):
        source = textwrap.dedent(block)
        try:
            tree = ast.parse(source)
        except SyntaxError:
            continue
        if any(isinstance(node, ast.Import | ast.ImportFrom) for node in tree.body):
            yield source


def examples():
    found = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path.is_symlink() or any(p.is_symlink() for p in path.parents if p != ROOT.parent):
                continue
            name = path.relative_to(ROOT).as_posix()
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
                docstring = ast.get_docstring(node) if isinstance(node, kinds) else None
                for source in blocks(docstring or ""):
                    found.setdefault(f"{name}:{getattr(node, 'name', 'module')}", source)
    return found


EXAMPLES = examples()


@pytest.mark.parametrize("place", sorted(EXAMPLES))
def test_an_example_runs(place, request):
    source = EXAMPLES[place]
    if MODEL in source:  # a model of any kind will do, and loads sooner
        source = source.replace(MODEL, str(request.getfixturevalue("tiny_model")))
    with boughs.backend(MockBackend("ok")):
        exec(compile(source, place, "exec"), {"__name__": "example"})


def test_the_examples_are_found():
    assert set(EXAMPLES) >= AT_LEAST
