"""The front half: models, requests, text and result logs behind one asynchronous API."""
