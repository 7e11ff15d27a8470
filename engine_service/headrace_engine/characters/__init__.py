"""From ids to characters, id by id, and the words that these end with."""
