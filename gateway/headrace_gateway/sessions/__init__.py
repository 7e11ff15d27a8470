"""Session streams: clients' sessions downstream, one session to each engine upstream."""
