import sys

if sys.version_info[0] > 2:  # noqa: UP036  an older one below the program could not even read it
    import tracekit_start

    tracekit_start.start()
