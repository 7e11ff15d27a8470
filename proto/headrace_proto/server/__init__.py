"""What both servers are made of. It needs the extra `server`; clients do without."""
