"""What is worth having ready before a request asks for it, and the file that keeps it over restarts. Knows no server."""
