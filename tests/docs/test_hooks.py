"""The page on hooks: its example runs, and it names every way to register one."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from wheelmq.broker.hooks import Hooks
from wheelmq.cli.hooks import load_hooks

PAGE = (Path(__file__).parents[2] / "docs" / "hooks.md").read_text()


def test_the_example_runs(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    play = """
async def play():
    from wheelmq.net.rpc_client import RpcClient
    small = {"log_file_bytes": 1 << 20, "message_index_enable": False}
    settings = BrokerSettings.of(store_path=Path("store"), listen_port=0, **small)
    app = BrokerApp(settings, owns_process=False)
    hook = Counting()
    app.hooks.register_rpc_hook(hook)
    await app.start()
    caller = RpcClient(f"127.0.0.1:{app.settings.broker.listen_port}")
    await caller.call(Command(code=28))
    await caller.close()
    await app.stop()
    assert hook.codes == [28]

asyncio.run(play())
"""
    exec(compile((example + play).replace('Path("store")', f"Path({str(tmp_path)!r})"), "hooks.md", "exec"), {})


def test_the_page_names_every_way_to_register() -> None:
    ways = {name for name in vars(Hooks) if name.startswith("register_")}
    assert set(re.findall(r"^\| `(register_\w+)`", PAGE, re.MULTILINE)) == ways


def test_the_module_of_the_example_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (module,) = re.findall(r"```py\n(.*?)```", PAGE, re.DOTALL)
    (command,) = re.findall(r"^\$ .*wheelmq up (.*)$", PAGE, re.MULTILINE)
    (tmp_path / "audit.py").write_text(module)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "audit", raising=False)
    hooks = load_hooks(tuple(word for word in command.split() if word != "--hook"))
    assert len(hooks.send) == len(hooks.authorities) == 1
    assert hooks.authorities[0]("127.0.0.1:1", "g", "Orders") is None
    assert hooks.authorities[0]("127.0.0.1:1", "g", "T") == "g must not send to T"
