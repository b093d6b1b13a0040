"""The rules of the house: who may import whom, which library stands behind which door, and that the package is what is on the disk."""

import ast
import functools
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import refold

ROOT = Path(refold.__file__).parent
LAYERS = ("events", "projections", "fsm", "diagrams", "runtime", "testing")
PURE = ("events", "projections", "fsm", "diagrams")
DATABASES = {"events/sql.py", "events/sqlite.py", "events/sqlite_file.py", "events/postgres.py"}
STORES = {"events/holds.py", "events/memory.py", "events/groups.py", "events/log.py", "events/storage.py"} | DATABASES
WORLD = {"time", "random", "uuid", "os", "threading", "asyncio", "anyio", "logging", "socket", "secrets", "subprocess", "concurrent", "sqlite3"}
DOORS = {
    "eventsourcing": {"events/memory.py", "events/sqlite.py", "events/sqlite_file.py", "events/postgres.py"},
    "transitions": {"fsm/machine.py", "diagrams/picture.py"},
    "psycopg": {"events/postgres.py"},
    "hypothesis": {"testing/"},
    "pydantic": {"runtime/"},
    "rich": {"runtime/cli/"},
    "openai": {"runtime/providers/"},
    "anthropic": {"runtime/providers/"},
    "genai_prices": {"runtime/prices.py"},
    "cryptography": {"runtime/sealing.py"},
}


def sources() -> list[Path]:
    return sorted(path for layer in LAYERS for path in (ROOT / layer).rglob("*.py"))


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Every statement, wherever in a file; there are ten times as many nodes."""
    for inside in ("body", "orelse", "finalbody", "handlers", "cases"):
        for each in getattr(node, inside, ()):
            yield each
            yield from statements(each)


@functools.cache
def imports(path: Path) -> list[str]:
    """Every module a file imports, wherever in it; not what is for the type checker alone."""
    found: list[str] = []
    for node in statements(tree(path)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name(path)} imports relatively"
            assert node.module is not None
            found += [f"{node.module}.{alias.name}" if node.module == "refold" else node.module for alias in node.names]
    return found


def imported() -> list[tuple[Path, str]]:
    """Every file with each module that it imports."""
    return [(path, module) for path in sources() for module in imports(path)]


def test_imports_point_one_way() -> None:
    bare = [f"{name(path)} imports {module} without refold in front" for path, module in imported() if module.split(".")[0] in LAYERS]
    assert not bare
    own = [(path, module) for path, module in imported() if module.startswith("refold.") and module.split(".")[1] in LAYERS]
    upwards = [
        f"{name(path)} imports {module}, which stands above it"
        for path, module in own
        if LAYERS.index(module.split(".")[1]) > LAYERS.index(name(path).split("/")[0])
    ]
    assert own
    assert not upwards


def test_every_library_has_one_door() -> None:
    def is_door(path: Path, library: str) -> bool:
        return any(name(path) == door or (door.endswith("/") and name(path).startswith(door)) for door in DOORS[library])

    behind = [(path, library) for path, module in imported() if (library := module.split(".")[0]) in DOORS]
    assert {library for _, library in behind} == DOORS.keys()
    elsewhere = [f"{name(path)} imports {library}" for path, library in behind if not is_door(path, library)]
    assert not elsewhere


def test_the_core_does_not_touch_the_world() -> None:
    core = [path for path in sources() if name(path).split("/")[0] in PURE and name(path) not in STORES]
    touched = [f"{name(path)} imports {world}" for path in core for world in {module.split(".")[0] for module in imports(path)} & WORLD]
    assert core
    assert not touched


def test_no_folder_has_a_circle_of_imports() -> None:
    # given who imports whom, at the top of a file or inside a function
    edges: dict[str, set[str]] = {}
    for path in sources():
        module = "refold." + name(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        found = [node for node in ast.walk(tree(path)) if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("refold.")]
        edges[module] = {f"{node.module}.{alias.name}" for node in found for alias in node.names} | {node.module for node in found if node.module}
    edges = {module: {target for target in targets if target in edges and target != module} for module, targets in edges.items()}
    # when the modules without imports are taken away again and again
    while leaves := {module for module, targets in edges.items() if not targets}:
        edges = {module: targets - leaves for module, targets in edges.items() if module not in leaves}
    # then none is left over
    assert not edges, f"these import one another in a circle: {sorted(edges)}"


@pytest.mark.checkout
def test_the_packages_are_the_folders_on_the_disk() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["packages"]
    on_disk = {"refold", *("refold." + name(path.parent).replace("/", ".") for path in sources())}
    assert set(declared) == on_disk


@pytest.mark.checkout
def test_the_tree_in_the_readme_names_every_module_in_its_folder() -> None:
    # given the tree, a folder from each line that begins with one
    drawn = (ROOT / "README.md").read_text(encoding="utf-8").partition("## The tree\n")[2].partition("\n## ")[0]
    shown = {folder: set(re.findall(r"\w+\.py", text)) for folder, text in re.findall(r"^(\w+)/(.*(?:\n .*)*)", drawn, re.MULTILINE)}
    # then it has the modules of each folder, but for the drawings, which are known by what comes out
    for folder in set(LAYERS) - {"diagrams"}:
        assert shown[folder] == {path.name for path in (ROOT / folder).glob("*.py")} - {"__init__.py"}, folder


@pytest.mark.checkout
def test_the_version_is_one() -> None:
    assert tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"] == refold.__version__


def test_every_file_says_what_lives_there() -> None:
    silent = [name(path) for path in sources() if path.stat().st_size and not ast.get_docstring(tree(path))]
    assert not silent


def test_nothing_is_imported_by_its_bare_name_and_the_face_loads_no_shell() -> None:
    # given a fresh interpreter
    code = "import sys, refold; bad = {'events', 'fsm', 'projections', 'diagrams', 'runtime', 'testing', 'openai', 'anthropic', 'hypothesis', 'psycopg', 'pydantic', 'rich', 'sqlite3'} & sys.modules.keys(); print(sorted(bad)); sys.exit(bool(bad))"
    # when refold is imported, then nothing else of weight is
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_public_name_can_be_loaded() -> None:
    for public in refold.__all__:
        assert getattr(refold, public) is not None
    with pytest.raises(AttributeError):
        refold.nothing_of_the_kind  # noqa: B018
