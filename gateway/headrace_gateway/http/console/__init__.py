"""The console: a page for people, of static files that call the gateway as every other client does."""
