"""Makes the reference of APIs: pages of the Python client, and the page of HTTP."""
