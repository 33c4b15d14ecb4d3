"""`tracekit completion`."""

import click
from click.shell_completion import get_completion_class

from tracekit.errors import TracekitError


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print the script that completes tracekit's commands and options in SHELL.

    \b
        bash   eval "$(tracekit completion bash)"                                         in ~/.bashrc
        zsh    eval "$(tracekit completion zsh)"                                          in ~/.zshrc
        fish   tracekit completion fish > ~/.config/fish/completions/tracekit.fish
    """
    complete = get_completion_class(shell)
    if complete is None:
        raise TracekitError(f"this version of click has no completion for {shell}")
    click.echo(complete(context.find_root().command, {}, "tracekit", "_TRACEKIT_COMPLETE").source())
