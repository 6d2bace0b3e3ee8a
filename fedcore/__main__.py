"""``python -m fedcore``, which is ``fedlens``: everything the browser does, without the browser."""

from fedcore.cli.main import fedlens

if __name__ == "__main__":
    fedlens()
