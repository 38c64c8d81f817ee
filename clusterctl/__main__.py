"""`clusterctl`, and `python -m clusterctl`."""

from __future__ import annotations

from clusterctl.cli.app import app


def main() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    main()
