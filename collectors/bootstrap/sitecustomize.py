import tracekit_start

tracekit_start.start()
