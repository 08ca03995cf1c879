"""`python -m fewpairs` is the `fewpairs` command."""

from fewpairs.cli.app import app

if __name__ == "__main__":
    app()
