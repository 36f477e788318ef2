"""The option --hook: load hooks by module and object before the broker starts. docs/hooks.md describes them."""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click

from wheelmq.cli.part import CannotStart

if TYPE_CHECKING:
    from wheelmq.broker.hooks import Hooks

log = logging.getLogger("wheelmq")

hook_option = click.option(
    "--hook",
    "hook_names",
    multiple=True,
    metavar="MODULE:OBJECT",
    help="Python code that the broker calls on requests, sends or consumption (docs/hooks.md). "
    "It must be on PYTHONPATH or installed.",
)

_KINDS: Final = {
    "RPC hook": ("before_request", "after_response"),
    "send hook": ("send_message_before", "send_message_after"),
    "consume hook": ("consume_message_before", "consume_message_after"),
}
"""The two methods of each kind of hook."""
_AUTHORITY_ARGUMENTS: Final = ("address", "producer_group", "topic")


def load_hooks(names: tuple[str, ...]) -> Hooks:
    """Load the hooks that `names` give as MODULE:OBJECT, and register them in that order. Raises CannotStart.

    A class is instantiated without arguments.
    """
    from wheelmq.broker.hooks import Hooks

    hooks = Hooks()
    for name in names:
        try:
            _register(hooks, name, _instance(name, _find(name)))
        except _BadHook as error:
            raise CannotStart(f"--hook {name}: {error}") from None
    return hooks


class _BadHook(Exception):
    """The text names the problem and the remedy."""


def _find(name: str) -> Any:
    """Return the object that `name` gives. Raises _BadHook."""
    module_name, sign, path = name.partition(":")
    if not (sign and module_name and path):
        raise _BadHook("write MODULE:OBJECT, as in --hook audit:Audit")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise _BadHook(f"the module {module_name} needs a module that is missing: {error}") from None
        remedy = "Install it, or add its folder to PYTHONPATH; the current folder is not searched"
        raise _BadHook(f"there is no module {error.name}. {remedy}") from None
    except Exception as error:
        raise _BadHook(f"the import of {module_name} failed: {type(error).__name__}: {error}") from None
    try:
        return functools.reduce(getattr, path.split("."), module)
    except AttributeError:
        public = ", ".join(sorted(one for one in vars(module) if not one.startswith("_"))) or "nothing"
        raise _BadHook(f"the module {module_name} ({module.__file__}) has no {path}; it has {public}") from None


def _instance(name: str, found: Any) -> Any:
    if not inspect.isclass(found):
        return found
    try:
        return found()
    except Exception as error:
        remedy = "Name an object that the module creates, or give the class defaults"
        raise _BadHook(f"{found.__name__}() failed: {type(error).__name__}: {error}. {remedy}") from None


def _register(hooks: Hooks, name: str, hook: Any) -> None:
    """Register `hook` as each kind of hook whose methods it has. Raises _BadHook."""
    ways: dict[str, Callable[[Any], None]] = {
        "RPC hook": hooks.register_rpc_hook,
        "send hook": hooks.register_send_message_hook,
        "consume hook": hooks.register_consume_message_hook,
    }
    kinds = []
    for kind, methods in _KINDS.items():
        missing = [method for method in methods if not callable(getattr(hook, method, None))]
        if len(missing) == len(methods):
            continue
        if missing:
            raise _BadHook(f"a {kind} needs the methods {' and '.join(methods)}; {missing[0]} is missing")
        for method in methods:
            _check_is_synchronous(getattr(hook, method), method)
        ways[kind](hook)
        kinds.append(kind)
    if not kinds:
        _check_authority(hook)
        hooks.register_topic_authority(hook)
        kinds.append("topic authority")
    log.info("hook %s is registered: %s", name, ", ".join(kinds))


def _check_authority(hook: Any) -> None:
    """Raise _BadHook unless `hook` can be called as a topic authority."""
    pairs = "; ".join(f"{kind}: {' and '.join(methods)}" for kind, methods in _KINDS.items())
    needs = f"it needs two methods ({pairs}), or to be a function of {', '.join(_AUTHORITY_ARGUMENTS)}"
    if not callable(hook):
        raise _BadHook(f"this {type(hook).__name__} is no hook: {needs}")
    try:
        inspect.signature(hook).bind(*_AUTHORITY_ARGUMENTS)
    except (TypeError, ValueError) as error:
        raise _BadHook(f"this {type(hook).__name__} is no hook ({error}): {needs}") from None
    _check_is_synchronous(hook if inspect.isroutine(hook) else hook.__call__, "a topic authority")


def _check_is_synchronous(function: Callable[..., Any], what: str) -> None:
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise _BadHook(f"{what} is async; the broker calls hooks without await: write def, not async def")
