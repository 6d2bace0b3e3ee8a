"""The command line: everything that the browser does, without the browser."""
