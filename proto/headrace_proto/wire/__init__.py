"""What messages mean to both sides: failures, rows of a session; and the seam where calls are carried."""
