"""OpenAI's responses: answers that may be stored, read again by position, and cancelled."""
