"""The import graph: arrows go one way, and a part knows its base and no other part."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

import narrows

ROOT = Path(narrows.__file__).parent
MODULES = {
    ".".join(("narrows", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(ROOT.rglob("*.py"))
}
TOP = {"narrows", "narrows.cli", "narrows.llm", "narrows.loader", "narrows.outputs", "narrows.repl", "narrows.__main__"}
SEAMS = ("kv", "schedulers", "verifiers", "drafters", "pacers", "routers")
SHARED = {f"narrows.{name}" for name in ("types", "settings", "sampling", "chains", "trees", "_native")}  # for any part
TOP_FOLDERS = ("narrows.serve", "narrows.measure", "narrows.train", "narrows.compress")


@cache
def imports(module: str, at_import: bool = False) -> frozenset[str]:
    """Names a module imports, as absolute modules; with `at_import`, only what importing it imports."""
    tree = ast.parse(MODULES[module].read_text())
    package = module if MODULES[module].name == "__init__.py" else module.rpartition(".")[0]
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            found.update(name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.rsplit(".", node.level - 1)[0] if node.level else ""
            source = ".".join(filter(None, (base, node.module)))
            for name in node.names:
                full = f"{source}.{name.name}"
                found.add(full if full in MODULES or full == "narrows._native" else source)
        elif (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)) or (
            at_import and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ):
            return
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(tree)
    return frozenset(found)


def ours(module: str) -> set[str]:
    return {name for name in imports(module) if name == "narrows" or name.startswith("narrows.")}


def parts() -> list[str]:
    """Modules of methods: everything in a seam's folder but its registry, its base and the pool."""
    inner = {f"narrows.{seam}" for seam in SEAMS}
    return [m for m in MODULES if m.rpartition(".")[0] in inner and m.rpartition(".")[2] not in ("base", "pool")]


def test_types_import_nothing_of_ours() -> None:
    assert ours("narrows.types") == set()


@pytest.mark.parametrize("module", parts())
def test_a_part_knows_shared_records_and_its_base(module: str) -> None:
    assert ours(module) <= SHARED | {f"{module.rpartition('.')[0]}.base"}


@pytest.mark.parametrize("module", [m for m in MODULES if m.endswith(".base") and m.split(".")[1] in SEAMS])
def test_a_base_knows_the_records(module: str) -> None:
    assert ours(module) <= {"narrows.types"}
    assert len(MODULES[module].read_text().splitlines()) <= 80


CORE = (
    "engine",
    "batch",
    "readout",
    "sampling",
    "ledger",
    "reader",
    "heads",
    "speculation",
    "chains",
    "costs",
    "prompts",
)


@pytest.mark.parametrize("module", [f"narrows.{name}" for name in CORE])
def test_the_engine_knows_no_part(module: str) -> None:
    allowed = {f"narrows.{name}" for name in CORE} | {"narrows.kv.pool", "narrows.constrain.base"} | SHARED
    allowed |= {f"narrows.{seam}.base" for seam in SEAMS}
    assert ours(module) <= allowed


def test_nothing_below_imports_what_is_on_top() -> None:
    for module in MODULES:
        if module not in TOP and not module.startswith(TOP_FOLDERS):
            assert not ours(module) & TOP, module
            assert not any(name.startswith(TOP_FOLDERS) for name in ours(module)), module


def test_only_training_imports_torch() -> None:
    peers = "narrows.measure.peers.engines"  # a program of its own, run in the Python of the peer
    for module in MODULES:
        if not module.startswith("narrows.train") and module != peers:
            assert not any(name.split(".")[0] in ("torch", "transformers") for name in imports(module)), module


def test_no_cycles_at_import() -> None:
    def below(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join((*path, module))
        if module not in done:
            for name in imports(module, at_import=True) & MODULES.keys() - {module, module.rpartition(".")[0]}:
                below(name, (*path, module))
            done.add(module)

    done: set[str] = set()
    for module in MODULES:
        below(module, ())
