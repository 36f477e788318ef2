"""`wheelmq man`: the man page, generated from the help texts of all commands."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Final

import click

PROGRAM: Final = "wheelmq"


@click.command(name="man", short_help="Print the man page.")
@click.pass_context
def command(context: click.Context) -> None:
    """Print the man page, with the help of all commands. `wheelmq man | man -l -` shows it.

    `wheelmq man > /usr/local/share/man/man1/wheelmq.1` installs it.
    """
    from importlib.metadata import version

    click.echo(man_page(context.find_root().command, version("wheelmq")), nl=False)


def man_page(root: click.Command, version: str) -> str:
    """Return the man page of a command and of all its commands, in the macros of man(7)."""
    context = click.Context(root, info_name=PROGRAM)
    title, _, _ = (root.help or "").partition("\n")
    lines = [
        f'.TH WHEELMQ 1 "" "WheelMQ {_escape(version)}" "User Commands"',
        ".SH NAME",
        f"{PROGRAM} \\- {_escape(title.partition(':')[2].strip().rstrip('.'))}",
        ".SH SYNOPSIS",
        f".B {PROGRAM}",
        '.RI [ options ] " command " [ arguments ]',
        ".SH DESCRIPTION",
        *_help(root),
        ".SH COMMANDS",
    ]
    variables: dict[str, list[str]] = {}
    for one in _commands(context):
        lines += _section(one)
        _note_variables(one, variables)
    lines.append(".SH ENVIRONMENT")
    for name, options in sorted(variables.items()):
        lines += [".TP", f".B {_escape(name)}", f"The default of {_escape(', '.join(dict.fromkeys(options)))}."]
    lines += [
        ".SH EXIT STATUS",
        *(".TP", ".B 0", "The command did its work."),
        *(".TP", ".B 1", "It failed, and the text on the standard error names the remedy."),
        *(".TP", ".B 2", "An option or an argument is wrong."),
        *(".TP", ".B 3", "send: all messages are stored, some of them less safely than requested."),
        *(".TP", ".B 78", "A part cannot start, and would fail the next time too."),
    ]
    return "\n".join(lines) + "\n"


def _commands(context: click.Context) -> Iterator[click.Context]:
    """Yield the contexts of all commands without commands of their own, and of groups before their commands."""
    group = context.command
    assert isinstance(group, click.Group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        if found is None or found.hidden:
            continue
        inner = click.Context(found, info_name=name, parent=context)
        yield inner
        if isinstance(found, click.Group):
            yield from _commands(inner)


def _section(context: click.Context) -> list[str]:
    usage = " ".join(context.command.collect_usage_pieces(context))
    lines = [f'.SS "{_escape(context.command_path)} {_escape(usage)}"', *_help(context.command)]
    for parameter in context.command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and parameter.name != "help":
            lines += [".TP", f".B {_escape(record[0])}", *_lines(record[1])]
    return lines


def _note_variables(context: click.Context, variables: dict[str, list[str]]) -> None:
    for parameter in context.command.params:
        if isinstance(parameter, click.Option) and parameter.envvar and not parameter.hidden:
            names = [parameter.envvar] if isinstance(parameter.envvar, str) else parameter.envvar
            for name in names:
                variables.setdefault(name, []).append(max(parameter.opts, key=len))


def _help(command: click.Command) -> Iterator[str]:
    """Yield the lines of a help text: paragraphs, and blocks that keep their lines."""
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        yield ".PP"
        if paragraph.startswith("\b"):
            yield from (".nf", *_lines(paragraph.partition("\n")[2]), ".fi")
        else:
            yield from _lines(paragraph)


def _lines(text: str) -> list[str]:
    return [_escape(line) for line in text.splitlines() if line.strip()] or [""]


def _escape(text: str) -> str:
    """Return text with the characters of roff escaped, and bold for words between backquotes."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq")
    text = re.sub(r"`([^`]+)`", r"\\fB\1\\fR", text)
    return "\\&" + text if text.startswith((".", "'")) else text
