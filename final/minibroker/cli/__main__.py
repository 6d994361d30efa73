"""``python -m minibroker.cli`` is the program ``minibroker``."""

from minibroker.cli.main import main

if __name__ == "__main__":
    main()
