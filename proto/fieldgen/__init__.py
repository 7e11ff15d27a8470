"""Makes from the wire contract what is written of the fields of configs elsewhere: `make fields`."""
