"""Programs of other systems, with the changes that they need here."""
