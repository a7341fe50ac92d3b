"""Of whole networks."""
