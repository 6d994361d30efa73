"""`minibroker completion`: prints the script with which a shell completes commands, options and topics."""

import click
from click.shell_completion import get_completion_class

COMPLETE_VARIABLE = "_MINIBROKER_COMPLETE"
HOW = {
    "bash": 'add to ~/.bashrc:  eval "$(minibroker completion bash)"',
    "zsh": 'add to ~/.zshrc, after compinit:  eval "$(minibroker completion zsh)"',
    "fish": "run:  minibroker completion fish > ~/.config/fish/completions/minibroker.fish",
}


@click.command(
    epilog="\n\n".join(HOW.values()).replace("add", "\b\nadd").replace("run:", "\b\nrun:"),
)
@click.argument("shell", type=click.Choice(list(HOW)))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script for a shell.

    It completes commands, options and their values. It completes topics, too, if a broker answers within half a second.
    """
    kind = get_completion_class(shell)
    assert kind is not None, f"click completes {shell}"
    root = ctx.find_root().command
    click.echo(f"# {HOW[shell]}")
    click.echo(kind(root, {}, "minibroker", COMPLETE_VARIABLE).source())
