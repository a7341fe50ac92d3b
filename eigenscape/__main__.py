"""Let `python -m eigenscape` do what `eigenscape` does."""

from eigenscape.cli import main

if __name__ == "__main__":
    main()
