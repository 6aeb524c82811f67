"""`python -m bighmm`, the same as the command `bighmm`; PyTorch's launcher needs it."""

from bighmm.cli.main import main

if __name__ == "__main__":
    main()
