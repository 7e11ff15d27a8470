"""Answers of chats, parted into calls of tools, thoughts and text, for every API; and which calls are wanted."""
