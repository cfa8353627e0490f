"""Command line, launchers, checks, live views and Serve files."""
