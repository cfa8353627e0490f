"""What a user starts: the command line, launching, checks, live views, Serve files."""
