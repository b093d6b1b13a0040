"""The code of the README runs, and what it names is there."""

import re
import tomllib
from pathlib import Path

import pytest

import refold

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", README, re.DOTALL), ids=lambda code: code.split("\n", 1)[0][:40])
def test_its_python_runs(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a folder of its own, when the code is run as it stands, then none of its assertions fails
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})


def test_its_first_agent_ends_with_what_it_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(README.split("```python\n")[1].split("```")[0], "README.md", "exec"), {"__name__": "readme"})
    assert capsys.readouterr().out == "Ann knows that it is 20 degrees.\n"


@pytest.mark.checkout
def test_every_extra_it_names_exists() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = set(tomllib.load(file)["project"]["optional-dependencies"])
    named = set(re.findall(r"'\.\[([a-z]+)\]'", README)) | set(re.findall(r"extra `([a-z]+)`", README))
    assert {"anthropic", "openai", "pdf", "postgres"} <= named <= extras


@pytest.mark.checkout
def test_every_file_of_its_map_is_there() -> None:
    # given the map, folder by folder
    tree = README.split("## The tree")[1].split("```")[1]
    folder = ""
    named: set[str] = set()
    for line in tree.splitlines():
        if head := re.match(r"([a-z]+)/ ", line):
            folder = head[1]
        named |= {f"{folder}/{file}" if not line.startswith("__init__") else file for file in re.findall(r"\b([a-z_]+\.py)\b", line)}
    assert len(named) > 40
    # then each is on the disk, and none of the packages has a file that the map leaves out
    assert not {name for name in named if not (ROOT / name).exists()}
    on_disk = {f"{package}/{path.name}" for package in ("events", "projections", "fsm") for path in (ROOT / package).glob("*.py") if path.name != "__init__.py"}
    missing = on_disk - named
    assert not missing, f"the map in the README leaves out {sorted(missing)}"


def test_every_command_it_names_exists() -> None:
    from refold.runtime.cli.main import perform

    for command in set(re.findall(r"^refold ([a-z]+)", README, re.MULTILINE)):
        assert perform([command, "--help"]) == 0, command


@pytest.mark.checkout
def test_the_version_is_in_the_changelog() -> None:
    assert f"## {refold.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
