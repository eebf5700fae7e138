"""Who may import whom: the table of docs/design.md, section 1, held by reading every import."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("lang", "runtime", "radix", "kernels")

ALLOWED = {
    "radix": {"radix"},
    "kernels": {"kernels"},
    "lang": {"lang"},
    "runtime": {"runtime", "radix", "kernels", "lang"},
}
NEVER = {
    "radix": {"torch", "transformers", "tokenizers", "safetensors", "aiohttp", "zmq"},
    "kernels": {"transformers", "tokenizers", "aiohttp", "zmq"},
    "lang": {"torch", "transformers", "tokenizers", "safetensors", "zmq", "numba", "flashinfer"},
    "runtime": set(),
}
RUNTIME_MAY_USE = {
    # the sampling parameters and the data that they exchange; the programs' IR and executor
    *(
        "abilities",
        "backend",
        "requests",
        "results",
        "lease",
        "errors",
        "segments",
        "sampling",
        "beams",
    ),
    *("home", "loop", "meta", "executor", "ir"),
    "constraints",
}
"""Of `lang`. The commands in `runtime/cli` are users of the language and may use all of it."""


def sources():
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def imports(path):
    """The absolute names of what a file imports, wherever in it."""
    package = ["boughs", *path.relative_to(ROOT).parent.parts]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, node.module or ""]).rstrip(".")
            yield module
            for alias in node.names:
                yield f"{module}.{alias.name}"


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_imports_what_its_package_may(path):
    package = path.relative_to(ROOT).parts[0]
    for name in imports(path):
        parts = name.split(".")
        assert parts[0] not in NEVER[package], f"{path} imports {name}"
        assert parts[0] not in PACKAGES, f"{path} imports {name}, which is called boughs.{name}"
        if parts[0] == "boughs" and len(parts) > 1 and parts[1] in PACKAGES:
            assert parts[1] in ALLOWED[package], f"{path} imports {name}"
            is_command = path.is_relative_to(ROOT / "runtime" / "cli")
            if package == "runtime" and not is_command and parts[1] == "lang" and len(parts) > 2:
                assert parts[2] in RUNTIME_MAY_USE, f"{path} imports {name}"


def test_one_file_knows_the_backend_of_constraints():
    """Of the runtime; `lang` asks it what it has against a schema where that is written."""
    users = {path for path in sources() if "llguidance" in {n.split(".")[0] for n in imports(path)}}
    assert {str(path.relative_to(ROOT)) for path in users} == {
        "runtime/constraints/llguidance_backend.py",
        "lang/schemas.py",
    }


def test_the_table_names_the_packages_that_there_are():
    assert set(ALLOWED) == set(NEVER) == set(PACKAGES)
    links = {path.name for path in (ROOT / "boughs").iterdir() if path.is_symlink()}
    assert links == set(PACKAGES)


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("boughs", ("torch", "transformers", "aiohttp", "pydantic", "boughs.runtime")),
        ("boughs.lang.program", ("torch", "transformers", "boughs.runtime", "pydantic")),
        ("boughs.testing", ("torch", "transformers", "boughs.runtime")),
        ("boughs.radix", ("torch", "boughs.lang", "boughs.runtime")),
    ],
)
def test_an_import_stays_light(module, absent):
    code = f"import sys, {module}; print(*[n for n in {absent!r} if n in sys.modules])"
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == []
