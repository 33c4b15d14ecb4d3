"""Recording: the supervisor outside the program, and the wire format of the evidence that crosses to it."""
