"""Quality against bytes per token: `narrows frontier`."""
