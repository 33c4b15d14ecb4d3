"""The folder put first on PYTHONPATH: Python starts the `sitecustomize` in it. Not imported as a package."""
