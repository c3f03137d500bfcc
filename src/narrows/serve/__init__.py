"""The server: an HTTP gateway, and one subserver process per model that owns its engine and its step loop."""
