"""What all tests share: how properties are looked for, the same examples every time in CI and new ones at every run of a developer, fewer of them in the quick set;
the three APIs of providers; and where REFOLD_KEEP_RUNS names a folder, every run that they make is kept there."""

import gc
import os
import secrets
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from refold.testing.replies import APIS, Api

# Tests start hundreds of processes. Where the environment wants no bytecode written, each of them would compile everything anew, and pytest every test at every run.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# The explain phase turns a failure that is found and shrunk in seconds into a minute's wait.
PHASES = (Phase.explicit, Phase.reuse, Phase.generate, Phase.target, Phase.shrink)

settings.register_profile("dev", max_examples=50, deadline=None, phases=PHASES, report_multiple_bugs=False)
settings.register_profile(
    "ci",
    max_examples=200,
    derandomize=True,
    database=None,
    deadline=None,
    phases=PHASES,
    print_blob=True,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow],
)
ALL = "ci" if os.environ.get("CI") else "dev"
settings.register_profile("quick", settings.get_profile(ALL), max_examples=20)


class Keeping:
    """Hooks of pytest around a keeper of runs: what is in memory is kept after each test, what other processes wrote at the end."""

    def __init__(self, folder: Path) -> None:
        from refold.testing.keeping import Keeper

        self.keeper = Keeper(folder).__enter__()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self) -> Iterator[None]:
        try:
            return (yield)
        finally:
            self.keeper.flush()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self.keeper.__exit__()
        self.keeper.sweep(session.config._tmp_path_factory.getbasetemp())  # type: ignore[attr-defined]  # what the fixture tmp_path_factory gives


def pytest_configure(config: pytest.Config) -> None:
    asked = config.getoption("--hypothesis-profile")
    settings.load_profile(asked or ("quick" if "not slow" in config.option.markexpr else ALL))
    if folder := os.environ.get("REFOLD_KEEP_RUNS"):
        config.pluginmanager.register(Keeping(Path(folder).absolute()))


def pytest_collection_finish() -> None:
    gc.freeze()  # The tests themselves stay until the end: no collection of what they leave behind need look at them.


KEYS = {"OPENAI_API_KEY": "sk-test-0123456789abcdef", "ANTHROPIC_API_KEY": "sk-ant-test-0123456789", "DEEPSEEK_API_KEY": "sk-deep-0123456789"}


@pytest.fixture(scope="session")
def sdks() -> None:
    """The providers' SDKs, loaded before anything is timed: that takes seconds."""
    gc.disable()  # What they make stays, and to look for garbage in it takes a fifth of the time.
    try:
        for name in ("openai", "anthropic"):
            pytest.importorskip(name, reason=f"the {name} package is not installed")
    finally:
        gc.enable()


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Keys that are none, no authority that is trusted, and nothing else from the environment that could lead a request astray."""
    for name in os.environ:
        if name.lower().endswith("_proxy") or name.startswith(("OPENAI_", "ANTHROPIC_", "DEEPSEEK_", "SSL_CERT_")):
            monkeypatch.delenv(name)
    for name, key in KEYS.items():
        monkeypatch.setenv(name, key)
    monkeypatch.setenv("SSL_CERT_DIR", os.devnull)  # Every client of an SDK would read all certificates of the machine, which takes longer than most runs here.
    return KEYS


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is tried again is tried again at once. The log says the time that is due, and how long that is, is asked where the rules are tested; here nobody sits through it."""
    from msgspec.structs import replace

    from refold.runtime.performing import Performer

    perform = Performer.perform

    async def performed(self: Performer, effect: Any) -> Sequence[Any]:
        return await perform(self, replace(effect, delay_us=1) if effect.delay_us else effect)

    monkeypatch.setattr(Performer, "perform", performed)


@pytest.fixture
def schema(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a fresh schema on the server that REFOLD_TEST_POSTGRES names (as postgresql://HOST/DATABASE, without options)."""
    server = os.environ.get("REFOLD_TEST_POSTGRES")
    if not server:
        pytest.skip("REFOLD_TEST_POSTGRES names no server")
    import psycopg
    from psycopg_pool.base import AttemptWithBackoff

    monkeypatch.setattr(AttemptWithBackoff, "INITIAL_DELAY", 0.01)  # Where a connection broke, the pool looks for another after a second, else.
    name = f"refold_{secrets.token_hex(6)}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {name}")
        yield f"{server}?options=-csearch_path%3D{name}&application_name={name}"
        connection.execute(f"DROP SCHEMA {name} CASCADE")


@pytest.fixture(params=APIS.values(), ids=APIS)
def api(request: pytest.FixtureRequest) -> Api:
    """One of the three APIs, as a user reaches it."""
    made: Api = request.param
    return made
