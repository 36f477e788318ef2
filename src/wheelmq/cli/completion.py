"""`wheelmq completion`: the script that lets a shell complete commands and options."""

from __future__ import annotations

from typing import Final

import click

SHELLS: Final = ("bash", "zsh", "fish")
PROGRAM: Final = "wheelmq"
VARIABLE: Final = "_WHEELMQ_COMPLETE"


@click.command(name="completion", short_help="Print the completion script of a shell.")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print the script with which SHELL completes the commands and options of wheelmq.

    \b
      bash  eval "$(wheelmq completion bash)"         in ~/.bashrc
      zsh   eval "$(wheelmq completion zsh)"          in ~/.zshrc
      fish  wheelmq completion fish | source          in ~/.config/fish/config.fish
    """
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(context.find_root().command, {}, PROGRAM, VARIABLE).source())
