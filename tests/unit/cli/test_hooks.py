"""--hook: modules in a folder become hooks of a broker, or the error names the remedy."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from wheelmq.broker.hooks import Hooks
from wheelmq.cli import main
from wheelmq.cli import part as part_module
from wheelmq.cli.hooks import load_hooks
from wheelmq.cli.part import CannotStart
from wheelmq.cli.stack import Stack, StackSettings
from wheelmq.formats.wire.codes import ResponseCode
from wheelmq.net.managed_process import CANNOT_START
from wheelmq.system.clock import SystemClock
from wheelmq.testing.harness import BrokerHarness

SOURCE = """
from wheelmq.broker.answers import PeerError
from wheelmq.formats.wire.codes import ResponseCode

class Both:
    def before_request(self, address, request): request.ext.setdefault("seen", "yes")
    def after_response(self, address, request, response): pass
    def send_message_before(self, context): pass
    def send_message_after(self, context): seen.append(context.topic)

class Consume:
    def consume_message_before(self, context): pass
    def consume_message_after(self, context): pass

class Namespace:
    class Inner(Consume): pass

class Half:
    def send_message_before(self, context): pass

class NeedsArguments:
    def __init__(self, name): pass

class Async:
    async def before_request(self, address, request): pass
    def after_response(self, address, request, response): pass

def only_orders(address, group, topic):
    return None if topic == "Orders" else f"{group} must not send to {topic}"

def too_few(address): pass
async def waits(address, group, topic): pass

seen = []
made = Consume()
number = 7
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """Return the name of a module of hooks in a folder of its own."""
    name = f"hooks_{abs(hash(request.node.nodeid))}"
    (tmp_path / f"{name}.py").write_text(SOURCE)
    (tmp_path / f"{name}_fails.py").write_text("raise RuntimeError('no licence')")
    (tmp_path / f"{name}_needs.py").write_text("import no_such_library")
    monkeypatch.syspath_prepend(str(tmp_path))
    request.addfinalizer(lambda: sys.modules.pop(name, None))
    return name


def counts(hooks: Hooks) -> tuple[int, int, int, int]:
    return len(hooks.rpc), len(hooks.send), len(hooks.consume), len(hooks.authorities)


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("Both", (1, 1, 0, 0)),
        ("Consume", (0, 0, 1, 0)),
        ("made", (0, 0, 1, 0)),
        ("Namespace.Inner", (0, 0, 1, 0)),
        ("only_orders", (0, 0, 0, 1)),
    ],
)
def test_an_object_becomes_each_hook_whose_methods_it_has(module: str, path: str, found: tuple[int, ...]) -> None:
    assert counts(load_hooks((f"{module}:{path}",))) == found


def test_a_broker_calls_hooks_in_order(module: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    hooks = load_hooks((f"{module}:Both", f"{module}:only_orders"))
    assert f"hook {module}:Both is registered: RPC hook, send hook" in caplog.messages
    with BrokerHarness(tmp_path / "store") as harness:
        for ours, loaded in zip(vars(harness.broker.parts.hooks).values(), vars(hooks).values(), strict=True):
            ours.extend(loaded)
        assert harness.send("Orders").code == 0
        answer = harness.send("Others")
        assert (answer.code, answer.remark) == (
            ResponseCode.NO_PERMISSION,
            "producers must not send to Others",
        )
        assert sys.modules[module].seen == ["Orders", "Others"]


CASES: list[tuple[Callable[[str], str], str]] = [
    (lambda module: module, "write MODULE:OBJECT"),
    (lambda module: f"{module}:", "write MODULE:OBJECT"),
    (lambda module: "no.such.module:Audit", "there is no module no. Install it, or add its folder to PYTHONPATH"),
    (lambda module: f"{module}_needs:A", "needs a module that is missing: No module named 'no_such_library'"),
    (lambda module: f"{module}_fails:A", "failed: RuntimeError: no licence"),
    (lambda module: f"{module}:Audit", "has no Audit; it has Async, Both, Consume, Half"),
    (lambda module: f"{module}:Half", "a send hook needs the methods send_message_before and send_message_after; "),
    (lambda module: f"{module}:NeedsArguments", "NeedsArguments() failed: TypeError"),
    (lambda module: f"{module}:Async", "before_request is async"),
    (lambda module: f"{module}:waits", "a topic authority is async"),
    (lambda module: f"{module}:too_few", "is no hook (too many positional arguments): it needs two methods"),
    (lambda module: f"{module}:number", "this int is no hook: it needs two methods (RPC hook: before_request and"),
]


@pytest.mark.parametrize(("name_of", "told"), CASES)
def test_the_error_of_a_bad_hook_names_a_remedy(module: str, name_of: Callable[[str], str], told: str) -> None:
    name = name_of(module)
    with pytest.raises(CannotStart) as refused:
        load_hooks((f"{module}:Both", name))
    assert str(refused.value).startswith(f"--hook {name}: ") and told in str(refused.value)


def run(command: str, home: Path, *words: str) -> Result:
    return CliRunner().invoke(main, [command, "--home", str(home), *words])


def test_commands_do_not_start_with_a_bad_hook(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_module, "_fast_runner", asyncio.Runner)
    monkeypatch.setattr(part_module.logging, "basicConfig", lambda **named: None)
    home = tmp_path / "home"
    for command, code in (("broker", CANNOT_START), ("up", 1)):
        result = run(command, home, "--hook", f"{module}:number")
        assert result.exit_code == code and f"--hook {module}:number: this int is no hook" in result.output
    assert not home.exists()


def test_up_passes_hooks_to_the_broker_command(tmp_path: Path) -> None:
    settings = StackSettings(home=tmp_path, with_pipeline=False, hooks=("audit:Audit", "audit:only_orders"))
    command = Stack(settings, clock=SystemClock(), tell=lambda text: None)._broker_command()
    assert command[-4:] == ["--hook", "audit:Audit", "--hook", "audit:only_orders"]


def test_the_broker_process_loads_the_hooks(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Hooks] = []

    class App:
        def __init__(self, settings: object, origin: object, hooks: Hooks, access_key: object) -> None:
            given.append(hooks)
            raise CannotStart("seen enough")

    monkeypatch.setattr("wheelmq.broker.app.BrokerApp", App)
    monkeypatch.setattr(part_module, "_fast_runner", asyncio.Runner)
    monkeypatch.setattr(part_module.logging, "basicConfig", lambda **named: None)
    run("broker", tmp_path / "home", "--hook", f"{module}:Both", "--hook", f"{module}:made")
    assert [counts(hooks) for hooks in given] == [(1, 1, 1, 0)]
