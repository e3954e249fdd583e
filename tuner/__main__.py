"""``python -m tuner``: the command line."""

from tuner.cli.main import main

if __name__ == "__main__":
    main()
