"""The browser page of uce-edge: static files that `uce-edge web` serves, and any other web server can."""
