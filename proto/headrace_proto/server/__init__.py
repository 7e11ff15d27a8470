"""Shared parts of both servers. Needs the extra `server`; clients do without."""
