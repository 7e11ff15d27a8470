"""The methods of both clients, and the connections that they share."""
