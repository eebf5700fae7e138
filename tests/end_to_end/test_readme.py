"""The README's program prints what the README shows."""

import re
import subprocess
import sys
from pathlib import Path

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def block(language, holds):
    (found,) = [b for b in re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL) if holds in b]
    return found


def test_the_program_of_the_first_screen(demo_model, tmp_path):
    del demo_model  # it is there, so that the program does not pull it
    script = tmp_path / "program.py"
    script.write_text(block("python", "def guide"))
    result = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=True
    )
    assert result.stdout == block("text", "Usage(")
    assert result.stderr == ""


def test_the_first_screen_has_the_commands_and_the_program():
    first = README[:2200]
    for needed in ("make demo", "make test", "def guide", "Usage("):
        assert needed in first
