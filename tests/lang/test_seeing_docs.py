"""The examples of `docs/seeing.md`, and of the docstrings that show traces and graphs, run."""

import re
import textwrap
from pathlib import Path

import pytest

import boughs
from boughs.lang import graph, view
from boughs.testing import MockBackend

PAGE = (Path(__file__).parents[2] / "docs" / "seeing.md").read_text(encoding="utf-8")


def test_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 5
    names = {}
    for block in blocks:
        exec(compile(block, "docs/seeing.md", "exec"), names)
    printed = capsys.readouterr().out
    assert "«?good?»" in printed
    assert "model 'fine' 4 view" not in printed  # a branch's text is the branch's
    assert "of the prompts was cached" in printed
    assert "select verdict ('good', 'bad')" in printed
    assert "<svg" in (tmp_path / "judge.svg").read_text()
    assert "In all it is" in (tmp_path / "trace.html").read_text()
    usage = names["states"].usage
    for field in re.findall(r"^\| `(\w+)`", PAGE.partition("| field |")[2], re.MULTILINE):
        assert hasattr(usage, field)


@pytest.mark.parametrize("module", [view, graph], ids=lambda module: module.__name__)
def test_the_docstrings_run(module, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    example = textwrap.dedent("\n".join(re.findall(r"^    .*$", module.__doc__, re.MULTILINE)))
    guide = boughs.function(lambda s: s.__iadd__("Where? " + boughs.gen("x")))
    names = {"guide": guide, "state": guide.run(backend=MockBackend()), "rich": __import__("rich")}
    exec(compile(example, module.__name__, "exec"), names)
    assert {path.suffix for path in tmp_path.iterdir()} <= {".html", ".svg"}
    assert list(tmp_path.iterdir())
