"""The command line: one command per file, its docstring is its help."""
