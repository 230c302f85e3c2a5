"""``python -m grandrounds``: the command line where its program is not on the path."""

from grandrounds.cli import main

if __name__ == "__main__":
    main()
