"""The routes of OpenAI's API: chats, completions, models and embeddings."""
