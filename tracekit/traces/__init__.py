"""Foreign trace formats: Kineto/Chrome JSON in."""
