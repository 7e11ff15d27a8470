"""Response formats, checked in a process of their own."""
