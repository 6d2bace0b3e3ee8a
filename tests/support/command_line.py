"""The command line, called in this process."""

from fedcore.cli import main as cli

TOML = """
name = "From a file"
rounds = {rounds}
seeds = [1]

[backbone]
name = "mini-vit"

[[methods]]
name = "fedot"
config = {{ lr = 0.01 }}

[[methods]]
name = "zero-shot"
"""


def run(*arguments: object) -> int:
    """Give a command as a user types it, in this process; its exit status."""
    return cli.main([str(a) for a in arguments])
