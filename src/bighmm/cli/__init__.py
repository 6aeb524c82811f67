"""The command line. Each command is a dataclass of its arguments and a function that runs it."""

__all__: list[str] = []
