"""Sessions: everything that one client or gateway reads over one stream."""
