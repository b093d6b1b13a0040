"""One fixture, `shell`: a folder where commands are typed, in this process, and what came back."""

import importlib
import io
import json
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from refold.runtime.cli.main import perform
from refold.runtime.cli.render import Page

AGENT = '''
import asyncio
from refold import Agent, tool

@tool(effect="read")
def look(at: str) -> str:
    """Looks."""
    print("this is no result")
    return f"seen {at}"

@tool(approval="always")
def send(to: str, body: str = "hello") -> str:
    """Sends a letter."""
    return f"sent to {to}"

@tool(timeout_s=0.01)
async def pay(amount: int) -> str:
    """Pays, and never hears whether it went through."""
    await asyncio.Event().wait()

agent = Agent(name="crew", tools=[look, send, pay])
other = 7
'''


@dataclass
class Done:
    """What one command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def error(self) -> str:
        """The one line of an error."""
        (line,) = self.err.splitlines()
        assert line.startswith("refold: ")
        return line


class Shell:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._monkeypatch, self._capsys = folder, monkeypatch, capsys
        self._loaded_before = set(sys.modules)

    def __call__(self, *words: str, stdin: str | bytes = "") -> Done:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))
        self._capsys.readouterr()
        code = perform(words)
        out, err = self._capsys.readouterr()
        return Done(code, out, err)

    def write(self, name: str, text: str) -> str:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return name

    def forget(self) -> None:
        """As another process would: the modules of this folder are not loaded yet."""
        for name in sys.modules.keys() - self._loaded_before:
            if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(self.folder)):
                del sys.modules[name]
        importlib.invalidate_caches()

    def script(self, *turns: dict[str, Any]) -> str:
        return "script:" + self.write("script.json", json.dumps(list(turns)))

    def run(self, *turns: dict[str, Any], words: tuple[str, ...] = ()) -> Done:
        """A run of the crew that plays these turns, with the id `one` unless another is given."""
        named = () if "--run-id" in words else ("--run-id", "one")
        return self("run", "Do it.", "--agent", "crew:agent", "--model", self.script(*turns), *named, *words)


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both streams as a terminal of 40 columns without colours."""

    def made(self: Page, _stream: object = None) -> None:
        self.width, self.coloured = 40, False

    monkeypatch.setattr(Page, "__init__", made)


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for name in ("REFOLD_STORE", "REFOLD_AGENT", "REFOLD_MODEL", "REFOLD_DEBUG", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    before = signal.getsignal(signal.SIGTERM)
    (tmp_path / "crew.py").write_text(AGENT, encoding="utf-8")
    made = Shell(tmp_path, monkeypatch, capsys)
    yield made
    signal.signal(signal.SIGTERM, before)
    made.forget()
